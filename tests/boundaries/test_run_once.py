"""CI leaves out of its second run the tests that passed in the first, and no other."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

@pytest.mark.parametrize("number", [1, 2])
def test_good(number): pass

def test_bad(): assert False

def test_skipped(): pytest.skip("absent")

@pytest.fixture
def breaks():
    yield
    raise OSError

def test_bad_at_the_end(breaks): pass
"""


def names_of(folder, *options):
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-v",
            "-p",
            "no:cacheprovider",
            "--rootdir=.",
            *options,
            "test_some.py",
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return ended.stdout


@pytest.mark.parametrize("spread", [(), ("-n", "2")])
def test_what_passed_is_left_out_of_the_second_run(tmp_path, spread):
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "test_some.py").write_text(TESTS)
    passed = tmp_path / "passed.txt"
    said = names_of(tmp_path, f"--passed-to={passed}", *spread)
    assert "1 failed, 3 passed, 1 skipped, 1 error" in said
    assert passed.read_text().splitlines() == [
        "test_some.py::test_good[1]",
        "test_some.py::test_good[2]",
    ]
    said = names_of(tmp_path, f"--leave-out={passed}", *spread)
    assert "1 failed, 1 passed, 1 skipped" in said
    assert "test_good" not in said
