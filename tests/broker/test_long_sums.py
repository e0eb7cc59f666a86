"""A sum of 65,536 numbers: nine real devices send them in chunks over Mosquitto, and a witness opens the file."""

from __future__ import annotations

import numpy as np
import pytest

from aggregator.extensions.authority.access.broker_process import mosquitto_program
from aggregator.extensions.sums.opened_sum import SumTable
from aggregator.store.opener import open_store
from tests.broker.test_two_organisations import Trial

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.extension,
    pytest.mark.timeout(900),
]
LENGTH, HOMES = 65_536, 9
SOURCE = f"""
import numpy as np
from edge_sdk.app.extensions import ExtensionIndex

known = ExtensionIndex.loaders

def blocks(device, about, period):
    return np.arange({LENGTH}) * float(device.config.id.removeprefix("home-"))

def loaders(self, table):
    return {{**known(self, table), **({{"blocks": lambda: blocks}} if table == "sums" else {{}})}}

ExtensionIndex.loaders = loaders
"""
CONTRACTS = f"""
import sys, time
from pathlib import Path

now = int(time.time())
begin = now - now % 3600
keys = Path(sys.argv[3]).read_text()
with Path(sys.argv[1]).open("a") as file:
    file.write(f'''
[sums]
{{keys}}
[[sums.contract]]
name = "blocks"
source = "blocks"
stream = "any"
unit = "1"
lowest = 0.0
highest = 1e6
resolution = 1.0
length = {LENGTH}
offset = "{{begin % 86400}}s"
due = "{{now - begin + 180}}s"
least = 8
cohort = "feeder"
''')
"""
OPEN = """
until ls operator/aggregator-state/sums/*.set 2> /dev/null; do sleep 1; done
cd witness
gridfed-witness open ../operator/aggregator-state/sums/*.set
cd ..
until gridfed-aggregator sums list --config operator/operator.toml | grep "9 of 9"; do sleep 1; done
gridfed-aggregator sums audit --config operator/operator.toml
"""


def test_a_long_sum_is_opened_bit_for_bit(tmp_path):
    if mosquitto_program() is None:
        pytest.skip("mosquitto is not installed")
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "sitecustomize.py").write_text(SOURCE)
    folder = tmp_path / "trial"
    folder.mkdir()
    trial = Trial(folder, OPEN, CONTRACTS, str(modules))
    try:
        trial.wait(600.0)
        database = folder / "operator" / "aggregator-state" / "aggregator.db"
        with open_store(database, read_only=True) as store:
            (found,) = store.table(SumTable).opened("blocks")
    finally:
        trial.end()
    assert (found.members, found.expected) == (HOMES, HOMES)
    assert np.array_equal(found.values, np.arange(LENGTH) * float(sum(range(1, HOMES + 1))))
    assert "1 of 1 sums are equal bit for bit" in trial.said
