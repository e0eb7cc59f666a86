"""What pytest must not import, because packages are absent; how CI runs each test once, with the same draws."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

PHASES = 3  # of a test: set-up, call, clean-up

_CAN_AUTHOR = find_spec("torch") is not None and find_spec("onnx") is not None

collect_ignore_glob = (
    [] if _CAN_AUTHOR else ["aggregator/models/*.py", "aggregator/graph/nets/*.py"]
)

if any(find_spec(name) is None for name in ("jinja2", "starlette", "uvicorn")):
    collect_ignore_glob += ["aggregator/console/*.py", "tests/aggregator/console/*.py"]

if find_spec("ocpp") is None or find_spec("websockets") is None:
    collect_ignore_glob.append("tests/firmware_sim/backoffice.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the two options by which CI runs a test once: in a new clone, or with everything present."""
    group = parser.getgroup("gridfed")
    group.addoption("--passed-to", metavar="FILE", help="write the names of passed tests to FILE")
    group.addoption("--leave-out", metavar="FILE", help="leave out the tests that FILE names")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Keep a list of passed tests where one is asked for; not in the workers of pytest-xdist.

    With ``GRIDFED_REPEATABLE`` in the environment, pytest-randomly gets one seed.
    """
    if (
        "GRIDFED_REPEATABLE" in os.environ
        and getattr(config.option, "randomly_seed", 0) == "default"
    ):
        config.option.randomly_seed = 1
    if (path := config.getoption("--passed-to")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(PassedTests(Path(path)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that a file names."""
    if path := config.getoption("--leave-out"):
        done = set(Path(path).read_text("utf-8").splitlines())
        config.hook.pytest_deselected(items=[one for one in items if one.nodeid in done])
        items[:] = [one for one in items if one.nodeid not in done]


class PassedTests:
    """Write the names of the tests that passed, set-up and clean-up included, at the end of a run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._phases: dict[str, int] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the phases of a test that passed."""
        self._phases[report.nodeid] = self._phases.get(report.nodeid, 0) + report.passed

    def pytest_sessionfinish(self) -> None:
        """Write the list."""
        names = sorted(name for name, passed in self._phases.items() if passed == PHASES)
        self._path.write_text("".join(f"{name}\n" for name in names), "utf-8")
