"""Bound files before they are parsed, in unpacked bytes and length of a line; find a text's encoding."""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from edge_sdk.extensions.sources.base import GZIP, Rejected

LARGEST_TABLE = 512 << 20
"""Largest unpacked size of a packed table in bytes. A plain one shows its size in its folder."""

LONGEST_LINE = 1 << 20
"""Longest line of a table in bytes."""

SAMPLE = 1 << 16
"""Bytes of a text from which its encoding is detected."""

_PIECE = 1 << 16


def unpacked(data: bytes, largest: int) -> Iterator[bytes]:
    r"""Yield the content of a file in pieces: plain, or gzip with any number of members.

    Args:
        largest: Limit of the content in bytes.

    Raises:
        Rejected: The content is larger, broken off, or no gzip.

    >>> b"".join(unpacked(gzip.compress(b"one, ") + gzip.compress(b"two") + b"\0", 8))
    b'one, two'
    """
    if not data.startswith(GZIP):
        if len(data) > largest:
            raise Rejected("too large")
        yield from (data[at : at + _PIECE] for at in range(0, len(data), _PIECE))
        return
    size, rest = 0, data
    while rest.strip(b"\0"):  # zeros fill up the last block of a tape
        inflater = zlib.decompressobj(wbits=31)
        while not inflater.eof:
            try:
                piece = inflater.decompress(rest, _PIECE)
            except zlib.error as error:
                raise Rejected("not gzip") from error
            rest = inflater.unconsumed_tail
            size += len(piece)
            if size > largest:
                raise Rejected("too large")
            if not piece and not rest and not inflater.eof:
                raise Rejected("broken off")
            yield piece
        rest = inflater.unused_data


def open_table(path: Path) -> BinaryIO:
    """Open a table's bytes, plain or gzip: its first bytes or its name show it."""
    with path.open("rb") as file:
        is_packed = file.read(2) == GZIP or path.suffix == ".gz"
    return cast("BinaryIO", gzip.open(path)) if is_packed else path.open("rb")


def open_text(path: Path) -> io.TextIOWrapper:
    """Open a table's text in its encoding; line ends stay as they are."""
    file = open_table(path)
    try:
        # one read alone, since a packed file may be broken off later
        encoding = text_encoding(cast("io.BufferedIOBase", file).read1(SAMPLE))
        file.seek(0)
    except (OSError, EOFError, zlib.error):
        file.close()
        raise
    return io.TextIOWrapper(file, encoding, errors="replace", newline="")


def text_encoding(start: bytes) -> str:
    r"""Return the encoding of a text by its first bytes: UTF-8, UTF-16 by its mark, else Windows-1252.

    >>> text_encoding("Zähler".encode()), text_encoding("Zähler".encode("cp1252"))
    ('utf-8-sig', 'cp1252')
    >>> text_encoding(b"\xff\xfea\0"), text_encoding(b"\xef\xbb\xbfa\xff")
    ('utf-16', 'utf-8-sig')
    >>> text_encoding("a damaged byte in Zähler".encode() + b"\xff")
    'utf-8-sig'
    """
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if start.startswith(codecs.BOM_UTF8):
        return "utf-8-sig"
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(start)
    bad = text.count("\ufffd")
    good = sum(letter > "\x7f" for letter in text) - bad if bad else 0
    return "cp1252" if bad > good else "utf-8-sig"


def refused(path: Path, largest: int = LARGEST_TABLE, longest: int = LONGEST_LINE) -> str:
    """Return why a table must not be parsed, or an empty text; reads it in pieces.

    What is damaged is left to its reader.

    Args:
        largest: Limit of what a packed one may unpack to, in bytes.
        longest: Limit of a line, in bytes.
    """
    try:
        with open_table(path) as file:
            is_packed, size, line = isinstance(file, gzip.GzipFile), 0, 0
            while piece := file.read(_PIECE):
                size += len(piece)
                first, last = piece.find(b"\n"), piece.rfind(b"\n")
                line = line + len(piece) if first < 0 else line + first
                if line > longest:
                    return "line too long"
                line = line if first < 0 else len(piece) - last
                if is_packed and size > largest:
                    return "too large"
    except (OSError, EOFError, zlib.error):
        pass
    return ""
