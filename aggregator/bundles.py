"""Read and verify bundles: the manifest, the initial vector and the archive for devices.

No graph is run and torch is not imported: everything comes from the signed manifest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np

from edge_sdk.errors import USAGE, Failure
from edge_sdk.protocol.contract.archive import (
    INITIAL,
    MANIFEST,
    SIGNATURE,
    SIZE_LIMIT,
    is_sealed,
    pack,
)
from edge_sdk.protocol.contract.manifest import Manifest, ManifestError
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.protocol.keys import read_public


class BundleFileError(Failure):
    """A bundle that is missing, damaged, unsigned, or differs from its manifest."""

    exit_code = USAGE


@dataclass(frozen=True, slots=True)
class ModelBundle:
    """A verified bundle."""

    manifest: Manifest
    initial: Vector  # initial parameter vector, shape ``(size,)``, float32
    archive: bytes  # the file that a device downloads; the same files give the same bytes

    @property
    def digest(self) -> bytes:
        """Return the SHA-256 of the archive (32 bytes), which identifies it in announcements."""
        return hashlib.sha256(self.archive).digest()


def shipped() -> list[str]:
    """Return the names of the bundles in the installed package, sorted."""
    folder = files("edge_sdk").joinpath("bundles")
    if not folder.is_dir():
        return []
    return sorted(x.name for x in folder.iterdir() if x.is_dir() and (x / MANIFEST).is_file())


def release_keys() -> tuple[bytes, ...]:
    with as_file(files("edge_sdk").joinpath("bundles")) as home:
        return tuple(read_public(path) for path in sorted(home.glob("release*.pub")))


def open_bundle(where: str, *, folder: Path, trusted: Iterable[bytes] = ()) -> ModelBundle:
    """Read and verify a shipped bundle by name, or any bundle by path.

    Args:
        where: A shipped name such as ``load-lstm``, or a path.
        folder: Base of relative paths.
        trusted: Raw public keys accepted for a bundle outside the package (the root key).

    Raises:
        BundleFileError: The bundle is missing, damaged, or not signed by a trusted key.
    """
    if where in shipped():
        with as_file(files("edge_sdk").joinpath("bundles")) as home:
            return _read(home / where, release_keys())
    path = folder / Path(where).expanduser()
    if not (path / MANIFEST).is_file():
        known = ", ".join(shipped()) or "none in this installation"
        raise BundleFileError(
            f"bundle {where!r} is neither shipped nor a folder with a {MANIFEST}",
            hint=f"shipped bundles: {known}; write one with `gridfed-aggregator export`",
        )
    return _read(path, tuple(trusted))


def _read(path: Path, trusted: tuple[bytes, ...]) -> ModelBundle:
    raw = _bytes(path / MANIFEST)
    _check_signature(path, raw, _bytes(path / SIGNATURE), trusted)
    try:
        manifest = Manifest.parse(raw)
    except ManifestError as error:
        raise BundleFileError(f"{path.name}: {error}") from error
    contents = {name: _checked(path, name, want) for name, want in manifest.files.items()}
    archive = pack({MANIFEST: raw, SIGNATURE: _bytes(path / SIGNATURE), **contents})
    if len(archive) > SIZE_LIMIT:
        raise BundleFileError(
            f"{path.name}: {len(archive)} bytes, at most {SIZE_LIMIT} are allowed"
        )
    return ModelBundle(manifest, _initial(path, manifest, contents.get(INITIAL, b"")), archive)


def _check_signature(path: Path, raw: bytes, proof: bytes, trusted: tuple[bytes, ...]) -> None:
    if not is_sealed(raw, proof, trusted):
        raise BundleFileError(
            f"{path.name}: the manifest is not signed by a trusted key (key id {proof[:8].hex()})",
            hint="sign it with this fleet's root key: `gridfed-aggregator export … --key root.key`",
        )


def _checked(path: Path, name: str, want: str) -> bytes:
    content = _bytes(path / name)
    got = hashlib.sha256(content).hexdigest()
    if got != want:
        raise BundleFileError(
            f"{path.name}/{name}: digest {got[:12]} does not match the manifest's {want[:12]}",
            hint="copy the bundle again, or export it again",
        )
    return content


def _initial(path: Path, manifest: Manifest, content: bytes) -> Vector:
    vector = np.frombuffer(content[: len(content) // 4 * 4], "<f4").astype(np.float32)
    if len(content) != 4 * manifest.size or not np.isfinite(vector).all():
        raise BundleFileError(
            f"{path.name}/{INITIAL}: expected {manifest.size} finite float32 values"
        )
    return vector


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BundleFileError(f"{path}: {error.strerror or error}") from error
