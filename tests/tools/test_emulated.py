"""The emulated lane must go red: for what a core stops at, for other versions, for a bad lock file.

The lane itself is ``make emulated``. It makes the board that the last tests want.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from tools.emulated.__main__ import FATAL, judged, main, page, with_engine
from tools.emulated.board import FOLDER, LOCK, ROOT, Absent, Board, Unfit, pins, why_not_apt
from tools.emulated.board import why_not_pip as why
from tools.emulated.fleet import judged as judged_run
from tools.emulated.probe import CHECKS, LOCKED
from tools.emulated.sealing import Wrong

LOCKED_HERE = pins(LOCK.read_text("utf-8"))
PASSED = [json.dumps({"check": name, "said": "yes"}) for name in CHECKS]


def ended(code, *lines, stderr=""):
    return subprocess.CompletedProcess([], code, "\n".join(lines), stderr)


def test_the_lock_file_is_read_as_pip_reads_it():
    assert set(LOCKED_HERE) == set(LOCKED)
    other = pins(with_engine(LOCK.read_text("utf-8"), FATAL))
    assert other == LOCKED_HERE | {"onnxruntime": FATAL}


@pytest.mark.parametrize("passed", range(len(CHECKS)))
def test_a_signal_is_laid_to_the_check_that_did_not_come_back(passed):
    found = judged("cortex-a53", ended(-signal.SIGILL, *PASSED[:passed]), LOCKED_HERE)
    assert found.wrong == [f"{list(CHECKS)[passed]}: ended by SIGILL (Illegal instruction)"]
    assert "WRONG: " in page(found)


def test_a_probe_that_ends_well_and_has_not_said_all_has_failed():
    assert judged("", ended(0), LOCKED_HERE).wrong == ["engine: ended with 0"]
    assert judged("", ended(0, *PASSED), LOCKED_HERE).wrong == ["the pace: ended with 0"]


def test_a_check_that_finds_something_else_is_named_once():
    told = json.dumps({"check": "training", "wrong": "Wrong: the loss went up"})
    found = judged("cortex-a53", ended(1, *PASSED[:3], told), LOCKED_HERE)
    assert found.wrong == ["training: Wrong: the loss went up"]
    assert list(found.said) == list(CHECKS)[:3]


def test_an_emulator_that_does_not_start_says_why():
    found = judged("bogus", ended(1, stderr="qemu: unable to find CPU model"), LOCKED_HERE)
    assert found.wrong == ["engine: qemu: unable to find CPU model"]


def test_all_passed_with_other_versions_is_not_the_locked_device():
    last = {"versions": LOCKED_HERE | {"numpy": "1.24.2"}, "pace": {"a forecast": 0.5}}
    found = judged("cortex-a53", ended(0, *PASSED, json.dumps(last)), LOCKED_HERE)
    assert found.wrong == ["numpy 1.24.2 is not the locked one"]
    found.here = {"a forecast": 0.1}
    assert "| a forecast | 5 |" in page(found)
    found.here = {}
    assert "times" not in page(found)
    last["versions"] = LOCKED_HERE
    assert judged("cortex-a53", ended(0, *PASSED, json.dumps(last)), LOCKED_HERE).wrong == []


def test_an_agent_must_have_answered_every_round_and_owe_nothing():
    def last(accepted=2, version=2, outbox=0):
        return json.dumps({"counts": {"accepted": accepted}, "version": version, "outbox": outbox})

    assert judged_run(0, last()).startswith("2 of 2 updates accepted")
    for code, said in [(1, last()), (None, ""), (0, last(1)), (0, last(2, 1)), (0, last(2, 2, 1))]:
        with pytest.raises(Wrong):
            judged_run(code, said)


def test_a_lock_file_that_no_board_can_install_is_not_taken_for_a_missing_network():
    asked = "ERROR: Could not find a version that satisfies the requirement x==9 (from versions: "
    silent, known = why(f"WARNING: Retrying\n{asked}none)"), why(f"{asked}1.0, 1.1)")
    clash = why("ERROR: Cannot install a and b because these have conflicting dependencies.")
    assert [type(each) for each in (silent, known, clash)] == [Absent, Unfit, Unfit]
    assert str(known).startswith("pip: Could not find a version that satisfies")
    assert isinstance(why(""), Absent)


def test_why_apt_has_nothing_is_one_line_with_what_came_before():
    install = "x\nE: Unable to locate package python3.11:arm64\nE: more\n"
    assert why_not_apt(install, "") == "apt: Unable to locate package python3.11:arm64"
    assert why_not_apt(install, "W: Failed to fetch y\n").endswith("(Failed to fetch y)")


def test_without_apt_it_says_so_and_is_no_failure(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["--board", str(tmp_path / "board")]) == 0
    said = capsys.readouterr().out
    assert said.startswith("emulated: skipped, no board here. no apt-get and dpkg-deb here")
    assert not any((tmp_path / "board").iterdir()), "nothing half made is left"


@pytest.mark.slow
def test_every_check_passes_on_this_machine_too():
    probe = [sys.executable, "-m", "tools.emulated.probe"]
    done = subprocess.run(probe, cwd=ROOT, capture_output=True, text=True, check=False)
    found = judged("", done, {})
    assert list(found.said) == list(CHECKS), done.stderr
    assert set(found.versions) == set(LOCKED)
    assert min(found.pace.values()) > 0


@pytest.mark.slow
def test_an_engine_that_small_cores_cannot_run_turns_the_lane_red(capsys):
    board, fatal = Board(FOLDER), with_engine(LOCK.read_text("utf-8"), FATAL)
    if not (board.is_made and board.wheels(fatal).is_dir()):
        pytest.skip("no emulated board is made in this checkout: make emulated")
    assert main(["--onnxruntime", FATAL]) == 1
    assert "WRONG: engine: ended by SIGILL (Illegal instruction)" in capsys.readouterr().out
