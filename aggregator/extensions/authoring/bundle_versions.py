"""Add versions to a registry of bundles, and move its aliases.

An alias moves in one atomic step, after the version that it names is whole on the disk: a power cut at any
moment leaves the old or the new one.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from aggregator.bundles import ModelBundle
from aggregator.config.bundle_registry import ALIASES, BundleRegistry, BundleRegistryError
from edge_sdk.app.permissions import make_private_folder, open_private
from edge_sdk.protocol.contract.archive import MANIFEST, SIGNATURE, seal
from edge_sdk.protocol.contract.manifest import Manifest
from edge_sdk.protocol.keys import Signer

_ALIAS = re.compile(r"[a-z][a-z0-9-]{0,31}")
_PART = ".part-"


def add_version(registry: BundleRegistry, bundle: ModelBundle, source: Path) -> None:
    """Copy a verified bundle into the registry, with its signature.

    Raises:
        BundleRegistryError: The version exists with other content.
    """
    manifest = bundle.manifest
    if manifest.version in registry.versions(manifest.name):
        if registry.open(manifest.name, manifest.version).digest != bundle.digest:
            raise BundleRegistryError(
                f"bundle {manifest.name!r} version {manifest.version} exists with other content",
                hint="export it under a higher --bundle-version",
            )
        return
    names = (MANIFEST, SIGNATURE, *manifest.files)
    _write(registry, manifest, {one: (source / one).read_bytes() for one in names})


def released_again(registry: BundleRegistry, name: str, version: int, root: Signer) -> ModelBundle:
    """Release the content of a version again, under the next version, signed by the root.

    Raises:
        BundleFileError: The version is missing or damaged.
    """
    before = registry.open(name, version)
    manifest = replace(before.manifest, version=registry.versions(name)[-1] + 1)
    path, raw = registry.path(name, version), manifest.canonical()
    files = {one: (path / one).read_bytes() for one in manifest.files}
    _write(registry, manifest, {MANIFEST: raw, SIGNATURE: seal(root, raw), **files})
    return registry.open(name, manifest.version)


def sign_version(registry: BundleRegistry, name: str, version: int, root: Signer) -> None:
    path = registry.path(name, version)
    _replace(path / SIGNATURE, seal(root, (path / MANIFEST).read_bytes()))


def move_alias(registry: BundleRegistry, name: str, alias: str, version: int) -> int | None:
    """Let an alias name a version; return the version that it named before.

    Raises:
        BundleRegistryError: The alias is malformed, or the version is missing.
    """
    if not _ALIAS.fullmatch(alias):
        raise BundleRegistryError(
            f"--alias: expected up to 32 of a-z, 0-9 and -, from a letter on, got {alias!r}"
        )
    registry.path(name, version)
    aliases = registry.aliases()
    before = aliases.get(name, {}).get(alias)
    aliases.setdefault(name, {})[alias] = version
    make_private_folder(registry.folder)
    _replace(registry.folder / ALIASES, json.dumps(aliases, indent=1, sort_keys=True).encode())
    return before


def _write(registry: BundleRegistry, manifest: Manifest, contents: Mapping[str, bytes]) -> None:
    home = registry.folder / manifest.name
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
