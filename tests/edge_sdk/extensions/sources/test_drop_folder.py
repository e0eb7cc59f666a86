"""A folder of dropped files: written well, written badly, again, and never twice."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_sdk.extensions.sources.drop_folder import DropFolder

Look = Callable[[], list[bytes]]


class Hand:
    """A clock that only moves when somebody waits."""

    passed = 0.0

    def wall(self) -> int:
        return 1_000_000

    def monotonic(self) -> float:
        return self.passed

    def wait(self, seconds: float) -> None:
        self.passed += seconds


@pytest.fixture
def folder(tmp_path: Path) -> DropFolder:
    hand = Hand()
    return DropFolder(tmp_path / "pm", "*.xml*", clock=hand, wait=hand.wait)


@pytest.fixture
def look(folder: DropFolder) -> Look:
    folder.path.mkdir()
    return lambda: [frame.payload for frame in folder.frames(5.0)]


def _write(path: Path, data: bytes, at: float) -> None:
    path.write_bytes(data)
    os.utime(path, (at, at))


def test_the_folder_is_scanned_at_its_interval(folder: DropFolder, look: Look) -> None:
    _write(folder.path / "A.xml", b"one", 10)
    folder.frames(0.2)

    assert [len(folder.frames(0.2)) for _ in range(26)].index(1) in (24, 25)


def test_a_missing_folder_is_waited_for(folder: DropFolder) -> None:
    assert folder.frames(3.0) == []


def test_unchanged_files_are_read_once_oldest_first(folder: DropFolder, look: Look) -> None:
    _write(folder.path / "A2.xml", b"two", 20)
    _write(folder.path / "B1.xml.gz", b"one", 10)

    assert look() == []  # it might be in the middle of being written
    assert look() == [b"one", b"two"]
    assert look() == []


def test_a_growing_file_is_not_read(folder: DropFolder, look: Look) -> None:
    path = folder.path / "A.xml"
    _write(path, b"beg", 10)
    assert look() == []
    _write(path, b"begin and e", 11)
    assert look() == []
    _write(path, b"begin and end", 12)
    assert look() == []
    assert look() == [b"begin and end"]


def test_a_file_that_is_renamed_when_complete_is_read_under_its_name(
    folder: DropFolder, look: Look
) -> None:
    part = folder.path / "A.xml.part"
    _write(part, b"whole", 10)
    assert look() == look() == []
    part.rename(folder.path / "A.xml")
    assert look() == []
    assert look() == [b"whole"]


def test_a_rewritten_file_is_read_again(folder: DropFolder, look: Look) -> None:
    path = folder.path / "A.xml"
    _write(path, b"first", 10)
    look()
    assert look() == [b"first"]
    _write(path, b"second", 20)
    look()
    assert look() == [b"second"]


def test_a_file_above_the_size_limit_is_counted_once(folder: DropFolder, look: Look) -> None:
    folder.largest = 8
    _write(folder.path / "A.xml", b"123456789", 10)
    _write(folder.path / "B.xml", b"12345678", 11)
    look()

    assert look() == [b"12345678"]
    assert look() == []
    assert folder.rejected == {"too large": 1}


def test_many_files_are_read_in_several_calls(folder: DropFolder, look: Look) -> None:
    folder.largest = 8
    for number in range(5):
        _write(folder.path / f"{number}.xml", b"1234", number)
    look()

    assert [len(look()) for _ in range(4)] == [2, 2, 1, 0]


def test_files_above_the_maximum_age_are_skipped(folder: DropFolder, look: Look) -> None:
    folder.history = 100.0
    _write(folder.path / "old.xml", b"old", 899)
    _write(folder.path / "new.xml", b"new", 901)
    look()

    assert look() == [b"new"]
    assert folder.unused == {"old.xml: older than 'max_age'": 1}


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_counted(folder: DropFolder, look: Look) -> None:
    _write(folder.path / "A.xml", b"secret", 10)
    (folder.path / "A.xml").chmod(0)
    look()

    assert look() == []
    assert folder.rejected == {"unreadable file": 1}


def test_other_names_and_subfolders_are_ignored_counted_and_named_once(
    folder: DropFolder, look: Look
) -> None:
    (folder.path / "sub.xml").mkdir()
    for name in ("A.csv", "\x1b[2J.csv", ".A.xml", "A.xml.tmp"):
        _write(folder.path / name, b"no", 10)
    look()

    assert look() == []
    assert folder.rejected == {"name outside 'pattern'": 2, "no file": 1}
    assert set(folder.unused) == {
        "A.csv: name outside 'pattern'",
        "?[2J.csv: name outside 'pattern'",
        "sub.xml: no file",
    }


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("A20260302.1000+0000-1015+0000_SubNetwork=1", 1),
        ("C20260302.1000-20260303.1000_-42_NodeBId_-_3.gz", 1),
        ("PM.XML", 1),
        ("site.xml.gz", 1),
        ("A20260302.csv", 0),
        ("E20260302.1000+0000-1015+0000_SubNetwork=1", 0),
    ],
)
def test_xml_and_the_names_of_ts_32_432_are_read_without_a_pattern(
    folder: DropFolder, look: Look, name: str, count: int
) -> None:
    folder.pattern = ""
    _write(folder.path / name, b"one", 10)
    assert [frame.origin for frame in folder.sample()] == [name] * count
    assert sum(folder.rejected.values()) == 1 - count


def test_a_pattern_reaches_folders_below(folder: DropFolder, look: Look) -> None:
    folder.pattern = "*/A*"
    (folder.path / "cell").mkdir()
    _write(folder.path / "cell" / "A.dat", b"one", 10)
    look()
    assert look() == [b"one"]
