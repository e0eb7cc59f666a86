"""Install the archive of a bundle beside its predecessors, and find one that still works."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from edge_sdk.bundle import Bundle, BundleError, BundleRollbackError, TrustedKeys, files_of, opened
from edge_sdk.protocol.contract.archive import MANIFEST, ArchiveError, unpack
from edge_sdk.protocol.contract.manifest import Manifest, ManifestError

_KEPT = 2


def install(
    data: bytes, folder: Path, *, trust: TrustedKeys, digest: bytes | None = None
) -> Bundle:
    """Install an archive beside its predecessors, atomically, and open it.

    The newest predecessor with another digest is kept for rollback; older ones are deleted. A lower
    version, or the same version with other content, is refused: otherwise an old signed bundle
    could be replayed.

    Args:
        folder: Folder of the installed bundles; each lies in a folder named by its digest.
        digest: Expected digest of the archive (32 bytes), if one was announced.

    Raises:
        BundleError: Refused; the folder is unchanged.
    """
    found = hashlib.sha256(data).digest()
    if digest is not None and found != digest:
        raise BundleError("the archive's digest is not the announced one")
    try:
        contents = unpack(data)
    except ArchiveError as error:
        raise BundleError(str(error)) from error
    bundle = opened(contents, trust.roots)
    _refuse_rollback(folder, bundle)
    if not _is_whole(folder / found.hex(), contents):
        _write(folder, found.hex(), contents)
    _prune(folder, keep=found.hex())
    return bundle


def _refuse_rollback(folder: Path, bundle: Bundle) -> None:
    for path in folder.glob(f"[!.]*/{MANIFEST}"):  # a partly written bundle prevents nothing
        try:
            other = Manifest.parse(path.read_bytes())
        except (ManifestError, OSError):
            continue  # nor does a damaged one
        same = path.parent.name == bundle.digest.hex()
        if other.name != bundle.manifest.name or same:
            continue
        if bundle.manifest.version <= other.version:
            raise BundleRollbackError(
                f"bundle {other.name} version {other.version} is installed; "
                f"another version {bundle.manifest.version} is refused",
                hint="release it again under a higher version",
            )


def _write(folder: Path, name: str, contents: Mapping[str, bytes]) -> None:
    try:
        if (folder / name).is_dir():  # damaged, otherwise it would not be written again
            shutil.rmtree(folder / name)
        folder.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))
        for file, data in contents.items():
            with (beside / file).open("wb") as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
        _sync(beside)
        beside.rename(folder / name)
        _sync(folder)
    except OSError as error:
        raise BundleError(f"{folder}: cannot install the bundle: {error.strerror}") from error


def _is_whole(path: Path, contents: Mapping[str, bytes]) -> bool:
    return path.is_dir() and files_of(path) == dict(contents)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _prune(folder: Path, *, keep: str) -> None:
    others = [path for path in folder.iterdir() if path.is_dir() and path.name != keep]
    for path in others:
        if path.name.startswith(".new-"):
            shutil.rmtree(path, ignore_errors=True)
    whole = [path for path in others if not path.name.startswith(".new-")]
    whole.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in whole[_KEPT - 1 :]:
        shutil.rmtree(path, ignore_errors=True)
