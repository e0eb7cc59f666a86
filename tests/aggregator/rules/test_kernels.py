"""Which rules give the same bits with the kernels of another processor, and which do not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aggregator.rules import RULES
from tools.portable import BASELINE, CORES, dispatched, environment

ROOT = Path(__file__).resolve().parents[3]
BY_DISTANCE = {"autogm", "caf", "clipped_clustering", "fltrust", "geometric_median"}
"""What docs/rules.md says to differ in the last digits."""

PROGRAM = """
import hashlib, json
import numpy as np
from aggregator.rules import RULES, Rows, bind
from aggregator.rules.parameters import uniform

more = {"trimmed_mean": {"f": 1}, "krum": {"f": 1}, "multi_krum": {"f": 1}, "bulyan": {"f": 1}}
more["fltrust"] = {"root": "m00"}
more |= {name: {"f": 1} for name in ("mean_around_median", "mda", "dnc", "caf")}
more["monna"] = {"f": 1, "root": "m00"}
out = {}
for name in sorted(RULES):
    rule = bind(name, **more.get(name, {}))
    for dtype in ("float32", "float64"):
        matrix = np.random.default_rng(8).normal(size=(12, 20_000)).astype(dtype)
        rows = Rows.of({f"m{i:02}": row for i, row in enumerate(matrix)})
        value = rule(rows, uniform(len(matrix))).value
        out[f"{name} {dtype}"] = hashlib.sha256(value.tobytes()).hexdigest()
print(json.dumps(out))
"""


def digests(more):
    plain = {
        k: v
        for k, v in os.environ.items()
        if k not in ("OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES")
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env=plain | more,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def here():
    return digests({})


@pytest.mark.parametrize("setting", [*CORES, BASELINE])
def test_every_other_rule_has_the_same_bits_on_another_processor(here, setting):
    more = environment(setting, *dispatched())
    if isinstance(more, str):
        pytest.skip(more)
    there = digests(more)
    differ = {case.split()[0] for case, bits in there.items() if bits != here[case]}
    assert differ <= BY_DISTANCE
    assert here.keys() == {f"{name} {dtype}" for name in RULES for dtype in ("float32", "float64")}
