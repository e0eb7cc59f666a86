"""kill -9 among neighbours: what they come to is what they would have come to, to the bit."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack

import pytest

from firmware_sim.fleet.federation import start_broker
from firmware_sim.fleet.processes import ProcessGroup
from tests.broker.conftest import require
from tests.broker.test_neighbours import Block

pytestmark = [pytest.mark.chaos, pytest.mark.broker]

NAMES = [f"home-{number:02d}" for number in range(5)]
LAST, KILLS = 12, 6


@pytest.mark.parametrize("method", [pytest.param("dfl_sgd", marks=pytest.mark.soak), "dfl_gt"])
def test_kills_of_neighbours_change_no_bit(tmp_path, method):
    require("mosquitto")
    rng = random.Random(7)
    with ExitStack() as stack:
        family = stack.enter_context(ProcessGroup(tmp_path / "logs"))
        url = start_broker(family, tmp_path / "broker", "mosquitto")
        numbers = {"interval": "1s", "deadline": "60s", "total_steps": LAST, "rate": 0.02}
        one = Block(tmp_path, family, url, method, names=NAMES, reach=1, **numbers)
        for name in NAMES:
            one.configure(name, url)
            one.start(name)
        for _ in range(KILLS):
            time.sleep(rng.uniform(1.0, 3.0))
            name = rng.choice(NAMES)
            if one.running[name].poll() is None:
                one.kill(name)
                one.start(name)
        one.until(lambda: all(one.step(name) >= LAST - 1 for name in NAMES))
        one.stop()
    used = one.used()
    assert all(used[name][step] == one.street.graph[name] for name in NAMES for step in range(LAST))
    wanted = one.street.by_hand(used, one.observe)
    for name in NAMES:
        assert (one.model(name) == wanted[name]).all(), name
