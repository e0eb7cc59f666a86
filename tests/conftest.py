"""What tests of several rooms share: how properties are tried, seeds, second oracles."""

import os
import sys
import types
import warnings

import pytest
from hypothesis import HealthCheck, settings

from tests.command_forks import CommandForks, stand_in

settings.register_profile(
    "any machine, however busy",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="GRIDFED_REPEATABLE" in os.environ,
)
settings.load_profile("any machine, however busy")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Seed torch as pytest-randomly seeds the others: a test's draws do not hang on the order."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)


@pytest.fixture(scope="session")
def byzfl():
    """ByzFL's arithmetic alone: what it trains models with wants torchvision and seaborn.

    Its rules write into what they are given: pass copies.
    """
    pytest.importorskip("torch")
    sys.modules.setdefault("byzfl.benchmark", types.ModuleType("byzfl.benchmark"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("byzfl")


@pytest.fixture(autouse=True, scope="session")
def _commands_in_forks():
    """Run the commands that set up a fleet in forks of one process."""
    processes = sys.modules.get("firmware_sim.fleet.processes")
    if processes is None:  # no collected test starts one
        yield
        return
    forks = CommandForks()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "subprocess", stand_in(processes, forks))
        yield
    forks.close()
