"""Process groups: start programs, monitor and measure them, and stop all of them."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import ClassVar, Self

from edge_sdk.errors import USAGE, Failure

AGAIN = 0.5  # seconds until an interrupt that was discarded is raised again
GRACE = 8.0  # seconds between SIGTERM and SIGKILL
# one thread a process: eight devices on two cores must not compete for them
QUIET = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def _die_with_parent() -> None:
    """In a new child: let the kernel send SIGTERM when the parent dies, even by ``kill -9``."""
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))


class ProgramDied(Failure):
    """A program that should be running is not."""


class ProgramRefused(ProgramDied):
    """A program refused its arguments or configuration: message and exit code are the program's."""

    exit_code: ClassVar[int] = USAGE


@dataclass(slots=True)
class RunningProgram:
    """One started program, the leader of its own process group."""

    name: str  # name in messages and of its log file
    process: subprocess.Popen[bytes]
    log: Path  # its standard output and error
    cpu: float = 0.0  # processor seconds, user and system; final once it has ended
    peak_kb: int = 0  # largest resident memory in kilobytes, as ``poll`` has last seen it
    code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs; negative for a signal."""
        if self.code is None:
            self.peak_kb = max(self.peak_kb, peak_kilobytes(self.process.pid))
            pid, status, usage = os.wait4(self.process.pid, os.WNOHANG)
            if pid:
                self.code = self.process.returncode = os.waitstatus_to_exitcode(status)
                self.cpu = usage.ru_utime + usage.ru_stime
                self.peak_kb = self.peak_kb or usage.ru_maxrss
        return self.code

    def measure(self) -> float:
        """Return the processor seconds used so far (Linux: from ``/proc``)."""
        if self.poll() is None:
            self.cpu = max(self.cpu, processor_seconds(self.process.pid))
        return self.cpu

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole group; nothing happens if it has ended."""
        if self.poll() is None:
            os.killpg(self.process.pid, number)

    def wait(self, timeout: float) -> int | None:
        """Wait for the end; None if it is still running after ``timeout`` seconds."""
        until = time.monotonic() + timeout
        while self.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        return self.code

    def tail(self, lines: int = 5) -> str:
        """Return the last lines of its output."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines:])


def processor_seconds(pid: int) -> float:
    """Return user and system seconds of a running process; 0.0 where there is no ``/proc``.

    >>> processor_seconds(os.getpid()) > 0 or sys.platform != "linux"
    True
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0.0
    user, system = stat.rpartition(")")[2].split()[11:13]  # a name may hold blanks and brackets
    return (int(user) + int(system)) / float(os.sysconf("SC_CLK_TCK"))


def peak_kilobytes(pid: int) -> int:
    """Return the largest resident memory of a running process; 0 where there is no ``/proc``.

    ``ru_maxrss`` would be at least that of the process that started it: it counts what was resident
    before ``exec``.

    >>> peak_kilobytes(os.getpid()) > 1000 or sys.platform != "linux"
    True
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(found[0]) if found else 0


def command(program: str, *arguments: str) -> list[str]:
    """Return the command line of one of the project's programs, with this interpreter.

    >>> command("gridfed-edge", "run", "a.toml")[1:]
    ['-m', 'edge_sdk', 'run', 'a.toml']
    """
    modules = {"gridfed-edge": "edge_sdk", "gridfed-aggregator": "aggregator"}
    return [sys.executable, "-m", modules[program], *arguments]


@dataclass
class ProcessGroup:
    """Programs that are stopped together. Leaving the ``with`` block stops every one of them."""

    logs: Path  # folder for one log file a program
    members: list[RunningProgram] = field(default_factory=list)  # in the order they were started

    def __enter__(self) -> Self:
        self.logs.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(self.members)

    def start(
        self, name: str, arguments: Sequence[str], *, environ: Mapping[str, str] | None = None
    ) -> RunningProgram:
        """Start a program in the background.

        Args:
            name: For messages; also names the log file.
            environ: Variables on top of this process's own.
        """
        log = self.logs / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - no thread runs while we start any
                env=os.environ | QUIET | dict(environ or {}),
            )
        self.members.append(RunningProgram(name, process, log))
        return self.members[-1]

    def require_running(self) -> None:
        """Raise ``ProgramDied`` with its last output if a member ended in failure."""
        for member in self.members:
            if member.poll():
                raise ProgramDied(
                    f"{member.name} ended with code {member.code}",
                    hint=member.tail() or "no output",
                )

    def stop(self, members: Iterable[RunningProgram], grace: float = GRACE) -> None:
        """Send SIGTERM to all, then SIGKILL. Every member is reaped, and so measured."""
        running = [member for member in reversed(list(members)) if member.poll() is None]
        with _ignore_interrupts():
            for member in running:
                member.signal(signal.SIGTERM)
            until = time.monotonic() + grace
            for member in running:
                if member.wait(until - time.monotonic()) is None:
                    member.signal(signal.SIGKILL)
                    member.wait(grace)


@contextmanager
def stoppable() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that everything started in it is stopped.

    Python discards an exception that is raised inside a finaliser, a weak reference's callback or a
    callback from C. After the first SIGTERM the interrupt is therefore raised again every ``AGAIN``
    seconds until the block ends, but never while an interrupt already unwinds the stack.
    """
    with ExitStack() as stack:

        def interrupt(_number: int, _frame: FrameType | None) -> None:
            if not _is_unwinding(sys.exc_info()[1]):
                raise KeyboardInterrupt

        def on_signal(number: int, frame: FrameType | None) -> None:
            if signal.getsignal(signal.SIGALRM) is not interrupt:
                handler = signal.signal(signal.SIGALRM, interrupt)
                stack.callback(signal.signal, signal.SIGALRM, handler)
                timer = signal.setitimer(signal.ITIMER_REAL, AGAIN, AGAIN)
                stack.callback(signal.setitimer, signal.ITIMER_REAL, *timer)
            interrupt(number, frame)

        stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, on_signal))
        yield


def _is_unwinding(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


@contextmanager
def _ignore_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C during cleanup: a second one must not leave programs running."""
    with ExitStack() as stack:
        try:
            before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        except ValueError:  # not the main thread: signals do not come here
            yield
            return
        stack.callback(signal.signal, signal.SIGINT, before)
        yield


def run(arguments: Sequence[str], *, timeout: float = 60.0) -> str:
    """Run a program to its end and return its output.

    Raises:
        ProgramRefused: Wrong usage or configuration; the message is the program's.
        ProgramDied: It failed or took longer than ``timeout`` seconds; the hint is its output.
    """
    name = " ".join(Path(arguments[0]).name if i == 0 else a for i, a in enumerate(arguments[:5]))
    try:
        done = subprocess.run(
            arguments,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            check=False,
            env=os.environ | QUIET,
        )
    except subprocess.TimeoutExpired as late:
        raise ProgramDied(f"{name} took longer than {timeout:.0f} s") from late
    words = done.stderr.decode(errors="replace").strip()
    if done.returncode == USAGE and words:
        sentence, _, hint = words.partition("\n  hint: ")
        raise ProgramRefused(sentence, hint=hint)
    if done.returncode:
        output = words.replace("\n  hint: ", "; ")
        raise ProgramDied(f"{name} ended with code {done.returncode}", hint=output)
    return done.stdout.decode()
