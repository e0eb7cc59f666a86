"""What pytest must not import; the processor time that tests may use; how CI runs each test once."""

import os
from collections import Counter
from collections.abc import Generator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import pytest

# One thread of a BLAS for each test and each program that it starts: threads that wait use the processor, too. A
# plug-in of pytest may have loaded numpy by now.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
if find_spec("threadpoolctl") is not None:
    import_module("threadpoolctl").threadpool_limits(1)

PHASES = 3  # of a test: set-up, call, clean-up
QUICK_S = 3.0  # of a processor, for a test without one of these markers
LONG = ("slow", "chaos", "soak", "bench")
MOST = 15  # tests in the list of those that used most

_CAN_AUTHOR = find_spec("torch") is not None and find_spec("onnx") is not None

collect_ignore_glob = ["tests/vectors/store-0.1/make.py"]  # it imports the modules of 0.1

if not _CAN_AUTHOR:
    collect_ignore_glob += [
        "aggregator/extensions/authoring/*.py",
        "aggregator/extensions/papers/graph/nets/*.py",
    ]

if any(find_spec(name) is None for name in ("jinja2", "starlette", "uvicorn")):
    collect_ignore_glob += [
        "aggregator/extensions/console/*.py",
        "tests/aggregator/extensions/console/*.py",
    ]

if find_spec("ocpp") is None or find_spec("websockets") is None:
    collect_ignore_glob.append("tests/firmware_sim/backoffice.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options by which CI limits a run, and runs a test once: in a new clone, or with everything."""
    group = parser.getgroup("gridfed")
    group.addoption(
        "--processor-limit",
        metavar="S",
        type=float,
        default=float("inf"),
        help="fail if the run uses more seconds of processors, with the programs that it starts",
    )
    group.addoption("--passed-to", metavar="FILE", help="write the names of passed tests to FILE")
    group.addoption("--leave-out", metavar="FILE", help="leave out the tests that FILE names")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Count processor time; keep a list of passed tests where one is asked for.

    The workers of pytest-xdist count, the process that started them adds up and keeps the list.
    With ``GRIDFED_REPEATABLE`` in the environment, pytest-randomly gets one seed.
    """
    if (
        "GRIDFED_REPEATABLE" in os.environ
        and getattr(config.option, "randomly_seed", 0) == "default"
    ):
        config.option.randomly_seed = 1
    config.pluginmanager.register(ProcessorTime(config))
    if path := config.getoption("--passed-to"):
        config.pluginmanager.register(PassedTests(config, Path(path)))
    if path := config.getoption("--leave-out"):
        config.pluginmanager.register(LeftOut(config, Path(path)))


class LeftOut:
    """Leave out the tests that a file names, and do not even read the files of which it names every test."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self._root, self._hook = config.rootpath, config.hook
        self._done = set(path.read_text("utf-8").splitlines())

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Ignore a file whose own name is in the list."""
        name = os.path.relpath(collection_path, self._root).replace(os.sep, "/")
        return True if name in self._done else None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Deselect the tests."""
        self._hook.pytest_deselected(items=[one for one in items if one.nodeid in self._done])
        items[:] = [one for one in items if one.nodeid not in self._done]


class PassedTests:
    """Write the names of the tests that passed, and of the files all of whose tests did, at the end of a run.

    A test passes with its set-up and clean-up. Each worker of pytest-xdist collects every test, the marked ones as
    well: the first says how many a file has.
    """

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self._path = path
        self._output = getattr(config, "workeroutput", None)
        self._phases: Counter[str] = Counter()
        self._files: dict[str, int] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Count the tests of each file before some are deselected."""
        self._files = dict(Counter(file_of(one.nodeid) for one in items))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the phases of a test that passed."""
        self._phases[report.nodeid] += report.passed

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: "Worker") -> None:
        """Take the numbers of tests from a worker."""
        self._files.update(getattr(node, "workeroutput", {}).get("files", {}))

    def pytest_sessionfinish(self) -> None:
        """Write the list, or say the numbers to the process that does."""
        if self._output is not None:
            self._output["files"] = self._files
            return
        names = sorted(name for name, passed in self._phases.items() if passed == PHASES)
        passed = Counter(file_of(name) for name in names)
        names += sorted(file for file, count in self._files.items() if passed[file] == count)
        self._path.write_text("".join(f"{name}\n" for name in names), "utf-8")


def file_of(name: str) -> str:
    """Return the file in which a test is."""
    return name.partition("::")[0]


def processor_s() -> float:
    """Return the seconds of a processor that this process and its ended children have used."""
    return sum(os.times()[:4])


class Worker(Protocol):
    """A process of pytest-xdist that has ended; one that died has no output."""

    workeroutput: dict[str, Any]


class ProcessorTime:
    """Count the processor seconds of each test and of a run; fail a run that is over a limit.

    A test without one of the markers ``LONG`` has ``QUICK_S``. Its fixtures count for the run alone: others may
    share them. The run has ``--processor-limit``; without one, as with every test, nothing is limited.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._limit: float = config.getoption("--processor-limit")
        self._output = getattr(config, "workeroutput", None)
        self._begun = 0.0
        self._used: dict[str, float] = {}  # of all tests
        self._quick: dict[str, float] = {}  # of those that have to be quick
        self._workers_s: list[float] = []

    @property
    def _run_s(self) -> float:
        # The workers are children as well once they have ended: they are counted once, by what they said.
        return sum(os.times()[:2]) + sum(self._workers_s) if self._workers_s else processor_s()

    @property
    def _over(self) -> dict[str, float]:
        if self._limit == float("inf"):
            return {}
        return {name: used for name, used in self._quick.items() if used > QUICK_S}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        """Begin to count: what came before is no part of the test."""
        self._begun = processor_s()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add to the report the seconds that the test used."""
        report = yield
        if call.when == "call":  # pytest-xdist passes both on
            report.__dict__["used_s"] = processor_s() - self._begun
            report.__dict__["is_long"] = any(item.get_closest_marker(name) for name in LONG)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what a test used."""
        if report.when == "call":
            self._used[report.nodeid] = getattr(report, "used_s", 0.0)
            if not getattr(report, "is_long", True):
                self._quick[report.nodeid] = self._used[report.nodeid]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Worker) -> None:
        """Add what a worker used."""
        self._workers_s.append(getattr(node, "workeroutput", {}).get("processor_s", 0.0))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Say it to the process that started this one, or fail the run that is over a limit."""
        if self._output is not None:
            self._output["processor_s"] = processor_s()
        elif session.exitstatus == pytest.ExitCode.OK and (self._over or self._run_s > self._limit):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the seconds of the run, and what was over a limit."""
        say = terminalreporter.write_line
        most = sorted(self._used, key=self._used.__getitem__, reverse=True)[:MOST]
        say(f"{self._run_s:.0f} s of processor; the tests that used most:")
        for name in most:
            say(f"{self._used[name]:6.1f} s  {name}")
        if self._run_s > self._limit:
            say(f"ERROR the run may use {self._limit:.0f} s of processor", red=True)
        for name, used in self._over.items():
            say(
                f"ERROR {name} used {used:.1f} s of processor; a quick test may use {QUICK_S:.0f}:"
                " make it faster, or mark it slow",
                red=True,
            )
