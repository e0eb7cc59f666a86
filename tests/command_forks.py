"""Run the project's commands in forks of one process that has imported them.

Python and its imports take a second of a processor for each command that a set-up runs, and every fleet of a test
is set up by several. Programs that live on (agents, daemons, brokers) are started as on any machine.
"""

from __future__ import annotations

import json
import math
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

MODULES = ("edge_sdk", "aggregator", "tests.broker.shifted_clock")
IMPORTED = (  # nothing that starts a thread, as onnxruntime does: a fork has none
    "edge_sdk.commands.main",
    *(
        f"edge_sdk.extensions.{name}"
        for name in ("setup.check", "inspection.status", "evaluation.forecast")
    ),
    *(f"aggregator.commands.{name}" for name in ("main", "init", "check", "enrol")),
)
AT_START = ("LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "TZ")
"""Variables that a process reads when it starts; where they are others, no fork will do."""


class CommandForks:
    """Stands for ``subprocess.run``; anything but a command of the project is started by that.

    One command runs at a time.
    """

    def __init__(self) -> None:
        self._server: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._environ: dict[str, str] = {}

    def run(
        self,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **more: Any,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command to its end.

        Raises:
            TimeoutExpired: It took longer than ``timeout`` seconds.
        """
        environ = dict(os.environ if env is None else env)
        with self._lock:
            if not self._is_ours(arguments, environ):
                return subprocess.run(arguments, env=env, timeout=timeout, **more)  # noqa: PLW1510 - it is in more
            with tempfile.TemporaryDirectory() as folder:
                files = [str(Path(folder, name)) for name in ("out", "err")]
                seconds = math.ceil(timeout or 0)
                try:
                    code = self._asked(list(arguments[2:]), environ, files, seconds)
                except BaseException:  # an interrupt: the next answer would be that of this command
                    self.close()
                    raise
                if code == -signal.SIGALRM:
                    raise subprocess.TimeoutExpired(list(arguments), timeout or 0)
                out, err = (Path(file).read_bytes() for file in files)
        return subprocess.CompletedProcess(list(arguments), code, out, err)

    def _is_ours(self, arguments: Sequence[str], environ: dict[str, str]) -> bool:
        if self._server is None:
            self._environ = _at_start(os.environ)
        is_command = [*arguments[:2]] == [sys.executable, "-m"] and arguments[2] in MODULES
        return is_command and _at_start(environ) == self._environ

    def _asked(
        self, words: list[str], environ: dict[str, str], files: list[str], seconds: int
    ) -> int:
        if self._server is None:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            self._server = subprocess.Popen([sys.executable, __file__, *sys.path], **pipes)
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        ask = [words, environ, str(Path.cwd()), files, seconds]
        print(json.dumps(ask), file=self._server.stdin, flush=True)
        return int(self._server.stdout.readline())

    def close(self) -> None:
        """End the process, whose time then counts."""
        if self._server is not None:
            server, self._server = self._server, None
            server.communicate()


def _at_start(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: environ.get(name, "") for name in AT_START}


def serve() -> None:
    """Fork for each line of the standard input, and print the code with which the fork ended."""
    for name in IMPORTED:
        with suppress(ImportError):
            import_module(name)
    for line in sys.stdin:
        words, environ, place, files, seconds = json.loads(line)
        pid = os.fork()
        if not pid:
            become(words, environ, place, files, seconds)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
        sys.stdout.flush()


def become(
    words: list[str], environ: dict[str, str], place: str, files: list[str], seconds: int
) -> None:
    """Be a command, in the fork."""
    os.chdir(place)
    os.environ.clear()
    os.environ.update(environ)
    for number, file in enumerate((os.devnull, *files)):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT
        os.dup2(os.open(file, flags, 0o600), number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - as at the start of Python
    signal.alarm(seconds)
    sys.argv = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    sys.exit(0)


def stand_in(processes: Any, forks: CommandForks) -> SimpleNamespace:
    """Return what stands for the module ``subprocess`` in another module."""
    return SimpleNamespace(**{**vars(processes.subprocess), "run": forks.run})


if __name__ == "__main__":
    sys.path[:] = sys.argv[1:]
    serve()
