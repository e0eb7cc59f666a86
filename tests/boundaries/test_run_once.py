"""CI leaves out of its second run the tests that passed in the first; a run has a limit of processor time."""

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


LONG = """
import subprocess, sys, time
import pytest

CODE = "import time\\nwhile time.process_time() < 0.5: pass"

def test_quick(): pass

def test_busy(): exec(CODE.replace("0.5", str(time.process_time() + 0.3)))

def test_busy_program(): subprocess.run([sys.executable, "-c", CODE])

@pytest.mark.slow
def test_marked(): exec(CODE.replace("0.5", str(time.process_time() + 0.3)))
"""


def run(folder, *options):
    return subprocess.run(
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


@pytest.fixture
def folder(tmp_path):
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "test_some.py").write_text(TESTS)
    return tmp_path


@pytest.mark.slow
def test_a_run_over_a_limit_of_processor_time_fails(folder):
    """A test that must be quick may not use more than a quick test's seconds, the run not more than its own."""
    conftest = (folder / "conftest.py").read_text()
    (folder / "conftest.py").write_text(conftest.replace("QUICK_S = 3.0", "QUICK_S = 0.2"))
    (folder / "test_some.py").write_text(LONG)
    ended = run(folder, "--processor-limit=0.01", "-n", "1")
    assert "4 passed" in ended.stdout
    assert ended.returncode == 1
    assert "ERROR the run may use 0 s" in ended.stdout
    assert ended.stdout.count("a quick test may") == 2
    assert "test_some.py::test_busy used" in ended.stdout
    assert "test_some.py::test_busy_program used" in ended.stdout


@pytest.mark.parametrize("spread", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)])
def test_what_passed_is_left_out_of_the_second_run(folder, spread):
    passed = folder / "passed.txt"
    said = run(folder, f"--passed-to={passed}", *spread).stdout
    assert "1 failed, 3 passed, 1 skipped, 1 error" in said
    assert passed.read_text().splitlines() == [
        "test_some.py::test_good[1]",
        "test_some.py::test_good[2]",
    ]
    said = run(folder, f"--leave-out={passed}", *spread).stdout
    assert "1 failed, 1 passed, 1 skipped" in said
    assert "test_good" not in said
