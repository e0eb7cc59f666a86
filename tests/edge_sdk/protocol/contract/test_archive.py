"""Whatever bytes come as a bundle's archive, they are unpacked to the byte or refused."""

from __future__ import annotations

import io
import random
import struct
import zipfile

import pytest

from edge_sdk.protocol.contract.archive import SIZE_LIMIT, ArchiveError, pack, unpack

FILES = {"manifest.json": b"{}", "initial.f32": bytes(64), "forecast.onnx": b"graph"}
LOCAL, CENTRAL = b"PK\x03\x04", b"PK\x01\x02"
FLAGS = {LOCAL: 6, CENTRAL: 8}
METHOD = {LOCAL: 8, CENTRAL: 10}
SIZES = {LOCAL: 18, CENTRAL: 20}  # compressed, then uncompressed
ENDS = b"PK\x05\x06"


def changed(offsets, layout, *values, every=True):
    """Return the archive with fields of its headers set, in both headers of an entry."""
    out = bytearray(pack(FILES))
    for kind, offset in offsets.items():
        at = out.find(kind)
        while at >= 0:
            struct.pack_into(layout, out, at + offset, *values)
            at = out.find(kind, at + 4) if every else -1
    return bytes(out)


def zipped(names, method=zipfile.ZIP_STORED):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        for name in names:
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.create_system, entry.external_attr = 3, 0o644 << 16
            entry.compress_type = method
            archive.writestr(entry, b"x" * 50)
    return packed.getvalue()


@pytest.mark.parametrize("bit", range(16))
def test_an_entry_with_any_flag_is_refused(bit):
    """Bit 0 says encrypted: ``zipfile`` raises RuntimeError for it, and asks for a password."""
    with pytest.raises(ArchiveError, match="encrypted" if bit == 0 else "flag|not a bundle"):
        unpack(changed(FLAGS, "<H", 1 << bit))


@pytest.mark.parametrize("where", [LOCAL, CENTRAL])
@pytest.mark.parametrize("bit", range(16))
def test_a_flag_in_one_of_the_two_headers_is_refused(bit, where):
    with pytest.raises(ArchiveError, match="not a bundle archive"):
        unpack(changed({where: FLAGS[where]}, "<H", 1 << bit))


@pytest.mark.parametrize("method", [1, 6, 8, 9, 12, 14, 20, 93, 95, 99, 0xFFFF])
def test_an_entry_that_is_not_stored_is_refused(method):
    with pytest.raises(ArchiveError, match=f"compression method {method}, expected stored bytes"):
        unpack(changed(METHOD, "<H", method))


@pytest.mark.parametrize("size", [0, 1, 10**6, 2**31, 2**32 - 2, 2**32 - 1])
def test_a_declared_size_that_is_not_there_is_refused(size):
    with pytest.raises(ArchiveError, match="not a bundle archive"):
        unpack(changed(SIZES, "<II", size, size))


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressed_files_are_refused_unread(method):
    with pytest.raises(ArchiveError, match="expected"):
        unpack(zipped(["a"], method))


@pytest.mark.parametrize(
    "name",
    ["", "../a", "/etc/a", "a/b", "a/", "..", ".a", "C:a", "a\\b", "a b", "ä", "a" * 65],
)
def test_a_name_that_is_more_than_a_file_name_is_refused(name):
    with pytest.raises(ArchiveError, match="not a bundle archive"):
        unpack(zipped([name]))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_comes_twice_is_refused():
    with pytest.raises(ArchiveError, match="'a' occurs twice"):
        unpack(zipped(["a", "b", "a"]))


def test_too_many_files_and_too_many_bytes_are_refused():
    with pytest.raises(ArchiveError, match="33 files, at most 32"):
        unpack(pack({f"f{i:02}": b"" for i in range(33)}))
    with pytest.raises(ArchiveError, match=f"at most {SIZE_LIMIT} bytes"):
        unpack(bytes(SIZE_LIMIT + 1))
    assert len(unpack(pack({f"f{i:02}": b"" for i in range(32)}))) == 32


def test_a_count_of_entries_that_is_not_theirs_is_refused():
    for count in (0, 1, 2, 4, 0xFFFF):
        out = bytearray(pack(FILES))
        struct.pack_into("<HH", out, out.rfind(ENDS) + 8, count, count)
        with pytest.raises(ArchiveError):
            unpack(bytes(out))


def test_no_mutation_raises_anything_else_or_passes_unlike_what_was_packed():
    """Every byte of every header, and random cuts and splices: bounded, and seeded."""
    whole, draw = pack(FILES), random.Random(12)
    headers = [at for at in range(len(whole)) if not 30 < at < 60]
    mutants = [
        whole[:at] + bytes([value]) + whole[at + 1 :]
        for at in headers
        for value in {whole[at] ^ 1, whole[at] ^ 0x80, 0xFF}
    ]
    for _ in range(1500):
        out = bytearray(whole)
        for _ in range(draw.choice((1, 2, 4))):
            at = draw.randrange(len(out))
            match draw.randrange(4):
                case 0:
                    out[at] = draw.randrange(256)
                case 1:
                    del out[at : at + draw.randrange(1, 40)]
                case 2:
                    out[at:at] = out[at : at + draw.randrange(1, 80)]
                case _:
                    out[at : at + 4] = draw.choice((b"\xff" * 4, bytes(4), LOCAL, CENTRAL, ENDS))
        mutants.append(bytes(out))
    refused = 0
    for mutant in mutants:
        try:
            contents = unpack(mutant)
        except ArchiveError:
            refused += 1
        else:
            assert pack(contents) == mutant
    assert refused > 0.8 * len(mutants)
