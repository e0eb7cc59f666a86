"""A command in a fork does what it does as a program: the same output, exit code and errors."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.command_forks import CommandForks


@pytest.fixture
def forks():
    made = CommandForks()
    yield made
    made.close()


WORDS = [
    ("edge_sdk", "--version"),
    ("edge_sdk", "check", "none.toml"),
    ("aggregator", "enrol"),
    ("aggregator", "check", "--help"),
]


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_a_fork_says_what_a_program_says(forks, words):
    line, how = [sys.executable, "-m", *words], {"capture_output": True, "check": False}
    one = forks.run(line, **how)
    other = subprocess.run(line, **how)  # noqa: PLW1510 - it is in `how`
    assert (one.returncode, one.stdout, one.stderr) == (
        other.returncode,
        other.stdout,
        other.stderr,
    )


def test_a_fork_has_the_environment_and_the_folder_of_its_caller(forks, tmp_path, monkeypatch):
    line, how = [sys.executable, "-m", "edge_sdk", "init"], {"capture_output": True, "check": False}
    monkeypatch.chdir(tmp_path)
    assert forks.run([*line, "here.toml"], **how).returncode == 0
    assert (tmp_path / "here.toml").exists()
    wrong = os.environ | {"GRIDFED_EDGE_LIMITS__MEMORY_MB": "two words"}
    found = forks.run([*line[:3], "check", "here.toml"], env=wrong, **how)
    assert b"two words" in found.stderr


def test_a_command_that_takes_too_long_is_ended_and_the_next_one_runs(forks, tmp_path):
    os.mkfifo(tmp_path / "never")
    line, how = [sys.executable, "-m", "edge_sdk"], {"capture_output": True, "check": False}
    with pytest.raises(subprocess.TimeoutExpired):
        forks.run([*line, "check", str(tmp_path / "never")], timeout=1.0, **how)
    assert forks.run([*line, "--version"], **how).returncode == 0


def test_another_program_is_started(forks):
    line = [sys.executable, "-c", "print('itself')"]
    assert forks.run(line, capture_output=True, check=False).stdout == b"itself\n"
