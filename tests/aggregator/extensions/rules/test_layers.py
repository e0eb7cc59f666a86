"""A rule of each layer against a loop over the layers, and what a run makes of ``scope``."""

import numpy as np
import pytest

from aggregator.config import AggregatorConfig
from aggregator.config import bind as bind_run
from aggregator.extensions.rules.layers import LayerRule, by_layer
from aggregator.methods.averaging import FedAvg, fedavg
from aggregator.methods.base.types import Setup
from aggregator.rules import BEFORE, RULES, Rows, TooFewRows, bind
from aggregator.rules.parameters import uniform
from aggregator.store.row_file import SpooledRows
from aggregator.store.state_codec import flatten, rebuild
from edge_sdk.app.settings import SettingsError
from edge_sdk.protocol.contract.parameter_layout import ParamSpec

pytestmark = pytest.mark.extension
LAYOUT = ParamSpec.of([("a.w", (9, 5)), ("own", (4,)), ("b.w", (7,)), ("c", (1,))], ["a", "b", "c"])
SPANS = [(0, 45), (45, 52), (52, 53)]
MORE = {"fltrust": {"root": "m005"}, "monna": {"root": "m005"}}


class Config:
    class run:  # noqa: N801 - as in a configuration
        method = "fedavg"


def layered(name, **parameters):
    return by_layer(Config, bind(name, **parameters), LAYOUT)


def drawn(seed=0, n=13):
    matrix = np.random.default_rng(seed).normal(size=(n, 53)).astype(np.float32)
    matrix[:2] *= 50
    return matrix


@pytest.mark.parametrize("steps", [[], *([name] for name in BEFORE)], ids=str)
@pytest.mark.parametrize("name", sorted(RULES))
def test_the_value_is_each_layers_own(rows_of, tmp_path, name, steps):
    given = {"f": 1, "preaggregation": steps, **MORE.get(name, {})}
    if name == "bulyan" and steps == ["bucketing"]:
        pytest.skip("needs more rows")
    rule, alone = layered(name, **given), bind(name, **given)
    memory, apart = {}, [{}, {}, {}]
    for turn in range(2):  # the second round uses what the first one kept
        matrix = drawn(turn)
        rows = rows_of(matrix)
        stored = SpooledRows.of(dict(zip(rows.ids, matrix, strict=True)), tmp_path)
        in_file = rule(Rows.of(stored), uniform(13), memory)
        verdict = rule(rows, uniform(13), memory)
        each = [
            alone(rows_of(matrix[:, a:b].copy()), uniform(13), past)
            for (a, b), past in zip(SPANS, apart, strict=True)
        ]
        np.testing.assert_array_equal(verdict.value, np.concatenate([x.value for x in each]))
        assert in_file.value.tobytes() == verdict.value.tobytes()
        if verdict.weights:
            shares = [x.weights["m007"] for x in each]
            assert verdict.weights["m007"] == pytest.approx(np.dot(shares, [45, 7, 1]) / 53)
        assert set(verdict.dropped) == set.intersection(*(set(x.dropped) for x in each))
        memory, apart = verdict.memory, [x.memory for x in each]


def test_a_liar_is_dropped_in_all_layers_or_named_in_none(rows_of):
    matrix = np.ones((5, 53), np.float32)
    matrix[4] = 2.0
    matrix[4, 45:52] = 1e6
    found = layered("krum", f=1)(rows_of(matrix), uniform(5))
    np.testing.assert_array_equal(found.value, 1.0)
    few = layered("multi_krum", f=1, m=4)(rows_of(matrix), uniform(5))
    assert few.dropped == {"m004": "far"}
    with pytest.raises(TooFewRows):
        layered("krum", f=2)(rows_of(matrix), uniform(5))


def test_a_restart_keeps_every_layers_memory(rows_of):
    rule = layered("clipped_clustering", preaggregation=["bucketing"])
    assert isinstance(rule, LayerRule)
    half = fedavg(Setup(rule, FedAvg()))
    memory = rule(rows_of(drawn()), uniform(13)).memory
    assert {"0:norms", "1:norms", "2:norms", "2:draws"} <= set(memory)
    state = half.init(np.zeros(53, np.float32))
    leaves = flatten(state) | {f"memory.{key}": value for key, value in memory.items()}
    again = rebuild(state, leaves).memory
    wanted = rule(rows_of(drawn(1)), uniform(13), memory).value
    assert rule(rows_of(drawn(1)), uniform(13), again).value.tobytes() == wanted.tobytes()


def test_a_run_applies_its_rule_to_the_shared_layers(workplace):
    def run(scope, *replacing):
        more = f'rule = {{ name = "median", scope = "{scope}" }}'
        return bind_run(AggregatorConfig.load(workplace(more, replacing), {}))

    half = run("layer").half
    assert half is not None
    with pytest.raises(SettingsError, match=r"run\.rule\.scope: unknown 'row'; known: .*layer"):
        run("row")
    with pytest.raises(SettingsError, match=r"run\.rule\.scope: expected model: method 'pfl'"):
        run("layer", ("fedavg", "pfl"))
