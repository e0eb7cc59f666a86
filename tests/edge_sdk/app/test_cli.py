"""What every command does alike: exit codes, one sentence on errors, signals, sd_notify."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from edge_sdk.app.cli import (
    CommandResult,
    LogFormatter,
    Subcommand,
    notify,
    stop_signals,
    watchdog_seconds,
)
from edge_sdk.app.command_line import CommandLine, require_python
from edge_sdk.errors import Failure, LinkError


class BadConfig(Failure):
    exit_code = 2


def program(run):
    return CommandLine("tool", "About.", {"do": Subcommand("Do it.", run)})


def fails(error):
    def run(_args):
        raise error

    return program(run)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (BadConfig("x.toml: bad", hint="mend it"), 2, "tool: x.toml: bad\n  hint: mend it\n"),
        (Failure("it broke"), 1, "tool: it broke\n"),
        (LinkError("no broker"), 75, "tool: no broker\n"),
        (OSError("disk gone"), 1, "tool: disk gone\n"),
    ],
)
def test_an_error_prints_one_sentence_and_a_hint_and_sets_the_exit_code(capsys, error, code, said):
    assert fails(error).main(["do"]) == code
    assert capsys.readouterr().err == said


def test_json_is_for_programs_and_text_for_people(capsys):
    tool = program(lambda _args: CommandResult({"n": 1}, "one", 75))
    assert tool.main(["do"]) == 75
    assert capsys.readouterr().out == "one\n"
    assert tool.main(["do", "--json"]) == 75
    assert json.loads(capsys.readouterr().out) == {"n": 1}


def test_wrong_usage_exits_with_2(capsys):
    with pytest.raises(SystemExit) as caught:
        program(lambda _args: CommandResult({})).main(["dance"])
    assert caught.value.code == 2
    assert "invalid choice" in capsys.readouterr().err


def test_a_defect_prints_a_trace_only_with_debug_set():
    code = textwrap.dedent("""
        import sys
        from edge_sdk.app.cli import Subcommand
        from edge_sdk.app.command_line import CommandLine
        sys.exit(CommandLine("tool", "x", {"do": Subcommand("x", lambda args: 1 / 0)}).main(["do"]))
    """)
    for debug, has_trace in (("", False), ("1", True)):
        run = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "GRIDFED_DEBUG": debug},
        )
        assert run.returncode == 1
        assert ("Traceback" in run.stderr) == has_trace
        assert "ZeroDivisionError" in run.stderr


def test_an_old_python_is_refused_with_one_sentence(capsys):
    with pytest.raises(SystemExit) as caught:
        require_python("tool", (3, 10))
    assert caught.value.code == 2
    assert capsys.readouterr().err == "tool: needs Python 3.11 or newer, this is 3.10\n"


def test_the_first_signal_requests_a_stop_the_second_one_exits():
    before = signal.getsignal(signal.SIGTERM)
    with stop_signals() as stopping:
        assert not stopping.is_set()
        signal.raise_signal(signal.SIGTERM)
        assert stopping.is_set()
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_service_manager_is_notified(tmp_path):
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        assert notify("READY=1", "STATUS=linked", environ={"NOTIFY_SOCKET": address})
        assert manager.recv(100) == b"READY=1\nSTATUS=linked"
    assert not notify("READY=1", environ={})
    assert not notify("READY=1", environ={"NOTIFY_SOCKET": str(tmp_path / "none")})


def test_a_watchdog_of_another_process_is_ignored():
    assert watchdog_seconds({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}) is None
    assert watchdog_seconds({}) is None


def test_a_log_line_has_the_priority_of_the_journal():
    record = logging.makeLogRecord(
        {"levelno": 30, "levelname": "WARNING", "name": "a.b", "msg": "lost %s", "args": ("it",)}
    )
    assert LogFormatter(journal=True).format(record) == "<4>WARNING a.b: lost it"


def test_a_closed_pipe_is_no_error():
    long = "from edge_sdk.app.cli import CommandResult, Subcommand\n"
    long += "from edge_sdk.app.command_line import CommandLine\n"
    long += "say = Subcommand('Say.', lambda _: CommandResult({}, 'a line\\n' * 100_000))\n"
    long += "raise SystemExit(CommandLine('tool', '', {'say': say}).main(['say']))\n"
    tool = subprocess.Popen(
        [sys.executable, "-c", long], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert tool.stdout.readline() == "a line\n"
    tool.stdout.close()
    said = tool.stderr.read()
    tool.stderr.close()
    assert (tool.wait(30), said) == (0, "")


ROOT = Path(__file__).parents[3]

WITHOUT = """
import sys
sys.modules[{package!r}] = None
from {program}.commands.main import main
raise SystemExit(main({words!r}))
"""


@pytest.mark.parametrize(
    ("program", "package", "extra", "words"),
    [
        ("aggregator", "prometheus_client", "[aggregator]", ["run", "no.toml"]),
        ("aggregator", "torch", "[train]", ["export", "load-mlp", "--out", "out"]),
        ("edge_sdk", "numpy", "", ["run", "no.toml"]),
        ("edge_sdk", "msgpack", "", ["enrol", "METER"]),
        ("firmware_sim", "prometheus_client", "[aggregator]", ["run", "--devices", "2"]),
    ],
)
def test_a_program_without_a_package_names_the_extra_that_installs_it(
    tmp_path, program, package, extra, words
):
    pytest.importorskip(program)
    (tmp_path / "METER").write_text("x = 1")
    code = WITHOUT.format(package=package, program=program, words=words)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "defect" not in done.stderr
    if package in done.stderr.replace("-", "_"):
        assert f"pip install 'gridfed{extra}'" in done.stderr


def test_a_device_uses_one_thread_for_arithmetic_unless_the_environment_says_otherwise():
    code = "import os, sys; from edge_sdk.commands.main import main; sys.argv[1:] = ['--version']\n"
    code += "try: main()\nexcept SystemExit: print(os.environ['OMP_NUM_THREADS'])"
    plain = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    for given, wanted in (({}, "1"), ({"OMP_NUM_THREADS": "4"}, "4")):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env=plain | given,
        )
        assert done.stdout.split()[-1] == wanted
