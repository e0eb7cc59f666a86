"""Registry of a fleet's bundles: every version in a folder, and aliases that name one of them.

``run.bundle = "load@live"`` names a bundle by its alias.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from aggregator.bundles import BundleFileError, ModelBundle, open_bundle, release_keys
from aggregator.config.root_files import archived_keys
from aggregator.config.sections import AggregatorConfig
from edge_sdk.app.settings import SettingsError
from edge_sdk.protocol.contract.archive import MANIFEST
from edge_sdk.protocol.keys import KeyFileError, read_public
from edge_sdk.protocol.root_keys import read_root

LIVE = "live"  # usual alias: the version that the fleet trains
ALIASES = "aliases.json"


class BundleRegistryError(BundleFileError):
    """A version or an alias that the registry does not have or does not accept."""


@dataclass(frozen=True, slots=True)
class BundleRegistry:
    """Bundles in one folder: ``NAME/VERSION/`` and ``aliases.json``."""

    folder: Path  # the folder; it need not exist
    trusted: tuple[bytes, ...] = ()  # raw public keys of the fleet's root

    def names(self) -> list[str]:
        return sorted(
            {path.parent.parent.name for path in self.folder.glob(f"*/[0-9]*/{MANIFEST}")}
        )

    def versions(self, name: str) -> list[int]:
        """Return the versions of a bundle, lowest first."""
        found = self.folder.joinpath(name).glob(f"[0-9]*/{MANIFEST}")
        return sorted(int(path.parent.name) for path in found)

    def path(self, name: str, version: int) -> Path:
        """Return the folder of a version."""
        if version not in self.versions(name):
            known = ", ".join(map(str, self.versions(name))) or "none"
            raise BundleRegistryError(
                f"bundle {name!r} version {version} is not in {self.folder}; versions: {known}",
                hint="add a bundle: gridfed-aggregator bundle promote FOLDER_OR_NAME",
            )
        return self.folder / name / str(version)

    def open(self, name: str, version: int) -> ModelBundle:
        """Read a version; raise BundleFileError unless it is whole and signed by the root or the release key."""
        trusted = (*self.trusted, *release_keys())
        return open_bundle(
            str(self.path(name, version).absolute()), folder=self.folder, trusted=trusted
        )

    def aliases(self) -> dict[str, dict[str, int]]:
        """Return the version of every alias, by the name of its bundle."""
        try:
            found = json.loads((self.folder / ALIASES).read_text("utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise BundleRegistryError(f"{self.folder / ALIASES}: {error}") from error
        return {name: {a: int(v) for a, v in one.items()} for name, one in found.items()}

    def resolve(self, text: str) -> ModelBundle:
        """Read the bundle that ``NAME@ALIAS`` names; raise BundleFileError if it is missing or unusable."""
        name, _, alias = text.rpartition("@")
        version = self.aliases().get(name, {}).get(alias)
        if version is None:
            raise BundleRegistryError(
                f"bundle {name!r} has no alias {alias!r}",
                hint=f"set it: gridfed-aggregator bundle promote {name} --alias {alias}",
            )
        return self.open(name, version)


def registry_of(config: AggregatorConfig) -> BundleRegistry:
    return BundleRegistry(config.state / "bundles", archive_keys(config))


def bundle_keys(config: AggregatorConfig) -> tuple[bytes, ...]:
    """Return the public keys that may sign bundles in place of the root; raise SettingsError if a file has none."""
    try:
        return tuple(map(read_public, config.keys.bundle))
    except KeyFileError as error:
        raise SettingsError(f"{config.file.name}: keys.bundle: {error}") from error


def archive_keys(config: AggregatorConfig) -> tuple[bytes, ...]:
    """Return the keys that may sign the archive of a bundle.

    They are those of the root and of former roots, and those to which bundles are delegated.
    """
    public = config.root_public
    present = read_root(public).keys if public.is_file() else ()
    return (*present, *bundle_keys(config), *archived_keys(config.state))
