"""Registry of a fleet's bundles: every version in a folder, and aliases that name one of them.

``run.bundle = "load@live"`` names a bundle by its alias. An alias moves in one atomic step, after the
version that it names is whole on the disk: a power cut at any moment leaves the old or the new one.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from aggregator.bundles import BundleFileError, ModelBundle, open_bundle, release_keys
from aggregator.config.root_files import archived_keys
from aggregator.config.sections import AggregatorConfig
from edge_sdk.app.permissions import make_private_folder, open_private
from edge_sdk.app.settings import SettingsError
from edge_sdk.wire.contract.archive import MANIFEST, SIGNATURE, seal
from edge_sdk.wire.contract.manifest import Manifest
from edge_sdk.wire.keys import KeyFileError, Signer, read_public
from edge_sdk.wire.root_keys import read_root

LIVE = "live"
"""Usual alias: the version that the fleet trains."""

_ALIASES = "aliases.json"
_ALIAS = re.compile(r"[a-z][a-z0-9-]{0,31}")
_PART = ".part-"


class BundleRegistryError(BundleFileError):
    """A version or an alias that the registry does not have or does not accept."""


@dataclass(frozen=True, slots=True)
class BundleRegistry:
    """Bundles in one folder: ``NAME/VERSION/`` and ``aliases.json``.

    Attributes:
        folder: The folder; it need not exist.
        trusted: Raw public keys of the fleet's root.
    """

    folder: Path
    trusted: tuple[bytes, ...] = ()

    def names(self) -> list[str]:
        """Return the names of the bundles."""
        return sorted(
            {path.parent.parent.name for path in self.folder.glob(f"*/[0-9]*/{MANIFEST}")}
        )

    def versions(self, name: str) -> list[int]:
        """Return the versions of a bundle, lowest first."""
        found = self.folder.joinpath(name).glob(f"[0-9]*/{MANIFEST}")
        return sorted(int(path.parent.name) for path in found)

    def path(self, name: str, version: int) -> Path:
        """Return the folder of a version.

        Raises:
            BundleRegistryError: The registry does not have it.
        """
        if version not in self.versions(name):
            known = ", ".join(map(str, self.versions(name))) or "none"
            raise BundleRegistryError(
                f"bundle {name!r} version {version} is not in {self.folder}; versions: {known}",
                hint="add a bundle: gridfed-aggregator bundle promote FOLDER_OR_NAME",
            )
        return self.folder / name / str(version)

    def open(self, name: str, version: int) -> ModelBundle:
        """Read and verify a version.

        Raises:
            BundleFileError: It is missing, damaged, or not signed by the root or the release key.
        """
        trusted = (*self.trusted, *release_keys())
        return open_bundle(
            str(self.path(name, version).absolute()), folder=self.folder, trusted=trusted
        )

    def aliases(self) -> dict[str, dict[str, int]]:
        """Return the version of every alias, by the name of its bundle."""
        try:
            found = json.loads((self.folder / _ALIASES).read_text("utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise BundleRegistryError(f"{self.folder / _ALIASES}: {error}") from error
        return {name: {a: int(v) for a, v in one.items()} for name, one in found.items()}

    def resolve(self, text: str) -> ModelBundle:
        """Read the bundle that ``NAME@ALIAS`` names.

        Raises:
            BundleFileError: There is no such alias, or its version cannot be used.
        """
        name, _, alias = text.rpartition("@")
        version = self.aliases().get(name, {}).get(alias)
        if version is None:
            raise BundleRegistryError(
                f"bundle {name!r} has no alias {alias!r}",
                hint=f"set it: gridfed-aggregator bundle promote {name} --alias {alias}",
            )
        return self.open(name, version)

    def add(self, bundle: ModelBundle, source: Path) -> None:
        """Copy a verified bundle into the registry, with its signature.

        Raises:
            BundleRegistryError: The version exists with other content.
        """
        manifest = bundle.manifest
        if manifest.version in self.versions(manifest.name):
            if self.open(manifest.name, manifest.version).digest != bundle.digest:
                raise BundleRegistryError(
                    f"bundle {manifest.name!r} version {manifest.version} exists with other content",
                    hint="export it under a higher --bundle-version",
                )
            return
        names = (MANIFEST, SIGNATURE, *manifest.files)
        self._write(manifest, {one: (source / one).read_bytes() for one in names})

    def released(self, name: str, version: int, root: Signer) -> ModelBundle:
        """Release the content of a version again, under the next version, signed by the root.

        Raises:
            BundleFileError: The version is missing or damaged.
        """
        before = self.open(name, version)
        manifest = replace(before.manifest, version=self.versions(name)[-1] + 1)
        path, raw = self.path(name, version), manifest.canonical()
        files = {one: (path / one).read_bytes() for one in manifest.files}
        self._write(manifest, {MANIFEST: raw, SIGNATURE: seal(root, raw), **files})
        return self.open(name, manifest.version)

    def sign_again(self, name: str, version: int, root: Signer) -> None:
        """Replace the signature of a version by one of the present root key."""
        path = self.path(name, version)
        _replace(path / SIGNATURE, seal(root, (path / MANIFEST).read_bytes()))

    def move(self, name: str, alias: str, version: int) -> int | None:
        """Let an alias name a version; return the version that it named before.

        Raises:
            BundleRegistryError: The alias is malformed, or the version is missing.
        """
        if not _ALIAS.fullmatch(alias):
            raise BundleRegistryError(
                f"--alias: expected up to 32 of a-z, 0-9 and -, from a letter on, got {alias!r}"
            )
        self.path(name, version)
        aliases = self.aliases()
        before = aliases.get(name, {}).get(alias)
        aliases.setdefault(name, {})[alias] = version
        make_private_folder(self.folder)
        _replace(self.folder / _ALIASES, json.dumps(aliases, indent=1, sort_keys=True).encode())
        return before

    def _write(self, manifest: Manifest, contents: Mapping[str, bytes]) -> None:
        """Write a version beside the others, flush it, and give it its name."""
        home = self.folder / manifest.name
        make_private_folder(home)
        for part in home.glob(f"{_PART}*"):  # of a process that was killed
            shutil.rmtree(part, ignore_errors=True)
        part = home / f"{_PART}{secrets.token_hex(8)}"
        make_private_folder(part)
        for name, content in contents.items():
            with open_private(part / name, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        part.rename(home / str(manifest.version))
        _flush(home)


def registry_of(config: AggregatorConfig) -> BundleRegistry:
    """Return the registry of a fleet's bundles."""
    return BundleRegistry(config.state / "bundles", archive_keys(config))


def bundle_keys(config: AggregatorConfig) -> tuple[bytes, ...]:
    """Return the public keys that may sign bundles in place of the root.

    Raises:
        SettingsError: A file is missing or holds no key.
    """
    try:
        return tuple(map(read_public, config.keys.bundle))
    except KeyFileError as error:
        raise SettingsError(f"{config.file.name}: keys.bundle: {error}") from error


def archive_keys(config: AggregatorConfig) -> tuple[bytes, ...]:
    """Return the keys of which one has to sign the archive of a bundle.

    They are those of the root and of former roots, and those to which bundles are delegated.
    """
    public = config.root_public
    present = read_root(public).keys if public.is_file() else ()
    return (*present, *bundle_keys(config), *archived_keys(config.state))


def _replace(path: Path, content: bytes) -> None:
    beside = path.with_name(f"{_PART}{secrets.token_hex(8)}")
    with open_private(beside, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    _flush(path.parent)


def _flush(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
