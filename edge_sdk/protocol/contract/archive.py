"""Pack a bundle's files into one archive and sign its manifest.

The archive is an uncompressed zip with one fixed time stamp: the same files give the same bytes,
so its digest names the bundle on the wire.
"""

from __future__ import annotations

import hashlib
import io
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from edge_sdk.errors import WireError
from edge_sdk.protocol.keys import KID_SIZE, SIGNATURE_SIZE, Signer, kid_of, verify

if TYPE_CHECKING:
    import zipfile

MANIFEST = "manifest.json"
SIGNATURE = "manifest.sig"
INITIAL = "initial.f32"
SIZE_LIMIT = 8 * 1024 * 1024
"""Largest archive that a device accepts, in bytes."""

_CONTEXT = b"gridfed/1/bundle\0"
_STAMP = (1980, 1, 1, 0, 0, 0)  # the oldest date a zip can hold
_MOST_FILES = 32
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_UNREADABLE = (  # what ``zipfile`` raises, beside its own, for bytes that are no readable zip
    struct.error,
    ValueError,
    LookupError,
    RuntimeError,
    OverflowError,
    OSError,
    EOFError,
)


class ArchiveError(WireError):
    """An error: bytes that are not a bundle's archive."""


def pack(contents: Mapping[str, bytes]) -> bytes:
    """Pack files into an uncompressed zip, in name order.

    >>> pack({"b": b"2", "a": b"1"}) == pack({"a": b"1", "b": b"2"})
    True
    """
    import zipfile  # noqa: PLC0415 - with bz2 and lzma, when a bundle is opened

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(contents):
            entry = zipfile.ZipInfo(name, _STAMP)
            entry.create_system, entry.external_attr = 3, 0o644 << 16
            archive.writestr(entry, contents[name])
    return packed.getvalue()


def unpack(data: bytes) -> dict[str, bytes]:
    """Return an archive's files by name; the exact inverse of ``pack``.

    Raises:
        ArchiveError: The archive is too large, or is not exactly what ``pack`` writes. A folder or
            another path, an encrypted, compressed or repeated entry, a size beyond the archive's
            own, or bytes between the files are therefore refused, before any file is read.

    >>> unpack(pack({"a": b"1"}))
    {'a': b'1'}
    >>> unpack(pack({"a": b"1"}) + b" ")
    Traceback (most recent call last):
    edge_sdk.protocol.contract.archive.ArchiveError: not a bundle archive: packed in another way
    """
    import zipfile  # noqa: PLC0415 - as above

    if len(data) > SIZE_LIMIT:
        raise ArchiveError(f"a bundle archive has at most {SIZE_LIMIT} bytes, this has {len(data)}")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            _check_entries(entries, len(data))
            contents = {entry.filename: archive.read(entry) for entry in entries}
    except (zipfile.BadZipFile, zipfile.LargeZipFile, *_UNREADABLE) as error:
        raise ArchiveError(f"not a bundle archive: {error}") from error
    if pack(contents) != data:
        raise ArchiveError("not a bundle archive: packed in another way")
    return contents


def _check_entries(entries: Sequence[zipfile.ZipInfo], size: int) -> None:
    """Refuse a directory that ``pack`` cannot have written."""
    if len(entries) > _MOST_FILES:
        raise ArchiveError(f"not a bundle archive: {len(entries)} files, at most {_MOST_FILES}")
    names: set[str] = set()
    for entry in entries:
        name = entry.filename
        if not _NAME.fullmatch(name):
            raise ArchiveError(f"not a bundle archive: {name[:64]!r} is not a plain file name")
        if name in names:
            raise ArchiveError(f"not a bundle archive: {name!r} occurs twice")
        if entry.flag_bits:
            flaw = "encrypted" if entry.flag_bits & 1 else f"flagged 0x{entry.flag_bits:x}"
            raise ArchiveError(f"not a bundle archive: {name!r} is {flaw}, expected no flags")
        if entry.compress_type or entry.compress_size != entry.file_size:
            flaw = f"compression method {entry.compress_type}"
            raise ArchiveError(f"not a bundle archive: {name!r} has {flaw}, expected stored bytes")
        names.add(name)
    declared = sum(entry.file_size for entry in entries)
    if declared > size:
        raise ArchiveError(f"not a bundle archive: {declared} bytes declared in {size}")


def seal(key: Signer, manifest: bytes) -> bytes:
    """Return the content of ``manifest.sig``: 8 bytes of key id, 64 bytes of signature."""
    return kid_of(key.public) + key.sign(_signed(manifest))


def is_sealed(manifest: bytes, proof: bytes, trusted: Iterable[bytes]) -> bool:
    """Return whether one of the trusted public keys has signed these manifest bytes.

    >>> from edge_sdk.protocol.keys import from_seed
    >>> key, other = from_seed(bytes(32)), from_seed(bytes([1]) * 32)
    >>> proof = seal(key, b"{}")
    >>> is_sealed(b"{}", proof, [other.public, key.public]), is_sealed(b"{}", proof, [other.public])
    (True, False)
    >>> is_sealed(b"{ }", proof, [key.public])
    False
    """
    kid, signature = proof[:KID_SIZE], proof[KID_SIZE:]
    if len(signature) != SIGNATURE_SIZE:
        return False
    keys = [key for key in trusted if kid_of(key) == kid]
    return any(verify(key, signature, _signed(manifest)) for key in keys)


def _signed(manifest: bytes) -> bytes:
    return _CONTEXT + hashlib.sha256(manifest).digest()
