"""Run a user's journey: commands as typed, in environments made from the built wheels, with times."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 300.0
"""Seconds after which a command counts as hanging."""


class JourneyError(Exception):
    """A command of a journey failed, or its output lacks what a reader is told to expect."""


class Journey:
    """One journey in a folder of its own.

    Args:
        title: What the user wants.
        folder: Empty folder.
        dist: Folder of the built wheels.
    """

    def __init__(self, title: str, folder: Path, dist: Path) -> None:
        self.folder, self.dist, self._begun = folder, dist, time.monotonic()
        self._running: list[subprocess.Popen[bytes]] = []
        print(f"== {title}", flush=True)

    def step(self, text: str) -> None:
        """Print what has been reached, with the time since the start."""
        print(f"{time.monotonic() - self._begun:7.1f} s  {text}", flush=True)

    def succeed(self, text: str, *, minutes: float) -> None:
        """Print the time to the first success beside the time that a user is promised."""
        taken = (time.monotonic() - self._begun) / 60
        print(f"time to first success: {taken:.1f} min (at most {minutes:g}): {text}", flush=True)
        if taken > minutes:
            print("  longer than promised on this machine", flush=True)

    def environment(self, name: str, *requirements: str) -> Path:
        """Make an empty environment with distributions of ``dist``; return its folder of programs."""
        home = self.folder / name
        self.run(sys.executable, "-m", "venv", home)
        pins = ROOT / "constraints" / "dev.txt"
        self.run(
            *(home / "bin" / "pip", "--disable-pip-version-check", "install", "--quiet"),
            *("--find-links", self.dist, "-c", pins, *requirements),
        )
        return home / "bin"

    def run(self, *words: object, code: int = 0, **environ: str) -> str:
        """Run a command to its end and return what it printed.

        Raises:
            JourneyError: It ended with another exit code; the message has its output.
        """
        done = subprocess.run(
            list(map(str, words)), cwd=self.folder, env=self._environ(environ), timeout=TIMEOUT,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        if done.returncode != code:
            typed = shlex.join(map(str, words))
            raise JourneyError(f"{typed}\nended with {done.returncode}:\n{done.stdout}")
        return done.stdout

    def start(self, *words: object, log: str, **environ: str) -> subprocess.Popen[bytes]:
        """Start a program that runs on; it ends with the journey."""
        with (self.folder / log).open("ab") as file:
            one = subprocess.Popen(
                list(map(str, words)), cwd=self.folder, env=self._environ(environ),
                stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self._running.append(one)
        return one

    def stop(self, one: subprocess.Popen[bytes]) -> None:
        """End a program as its service manager would.

        Raises:
            JourneyError: It did not end cleanly.
        """
        one.send_signal(signal.SIGTERM)
        if code := one.wait(60):
            raise JourneyError(f"{one.args!r} ended with {code} after SIGTERM")
        self._running.remove(one)

    def until(self, what: str, is_reached: Callable[[], bool]) -> None:
        """Wait until something holds.

        Raises:
            JourneyError: It does not within the timeout.
        """
        end = time.monotonic() + TIMEOUT
        while not is_reached():
            if time.monotonic() > end:
                raise JourneyError(f"not reached: {what}\n{self.logs()}")
            time.sleep(0.3)
        self.step(what)

    def expect(self, text: str, found: str) -> None:
        """Refuse output that lacks a text.

        Raises:
            JourneyError: It does.
        """
        if text not in found:
            raise JourneyError(f"expected {text!r} in:\n{found}")

    def logs(self) -> str:
        """Return the last lines of every log."""
        return "\n".join(
            f"--- {path.name}\n" + "\n".join(path.read_text("utf-8").splitlines()[-12:])
            for path in sorted(self.folder.glob("*.log"))
        )

    def close(self) -> None:
        """Kill what still runs."""
        for one in self._running:
            one.kill()
            one.wait()

    @staticmethod
    def _environ(more: dict[str, str]) -> dict[str, str]:
        one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        return {**os.environ, **one_thread, **more}


@contextlib.contextmanager
def journey(title: str) -> Iterator[Journey]:
    """Run a journey in a temporary folder; ``--dist`` names the wheels, ``--keep`` keeps the folder."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="wheels (dist)")
    parser.add_argument("--keep", action="store_true", help="keep the folder, and print it")
    args = parser.parse_args()
    if not list(args.dist.glob("gridfed-*.whl")):
        sys.exit(f"{args.dist}: no wheels; build them: make dist")
    folder = Path(tempfile.mkdtemp())
    one = Journey(title, folder, args.dist.resolve())
    try:
        yield one
    except JourneyError as error:
        sys.exit(f"FAILED: {error}\n{one.logs()}")
    finally:
        one.close()
        if args.keep:
            print(folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
