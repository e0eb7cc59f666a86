"""What cannot be meant is refused before anything connects, with the file and the key."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from aggregator.config import AggregatorConfig, bind, broker_of, load_with_origins
from aggregator.methods import METHODS
from edge_sdk.app.settings import SettingsError, shown
from edge_sdk.errors import Failure
from edge_sdk.protocol import keys
from edge_sdk.protocol.contract.method import Ask, Up

KEPT_BACK = {
    "further_runs",
    "keys.signing",
    "keys.root",
    "encryption.folder",
    "broker.insecure",
    "run.weight_cap",
    "file",
    "parent",  # a table; its keys are in examples/substation.toml
}
"""Keys that the example leaves to the reference."""


def refused(path):
    with pytest.raises(Failure) as caught:
        bind(AggregatorConfig.load(path, {}))
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_configuration_binds_to_its_parts(workplace):
    run = bind(
        AggregatorConfig.load(workplace("settings = { steps = 3, rate = 0.5 }\nrounds = 7"), {})
    )
    assert (run.spec.size, run.spec.shared_size, run.shared) == (3, 2, ("body.",))
    assert (run.rounds.quorum, run.rounds.deadline, run.rounds.limit) == (2, 60.0, 7)
    assert run.limits.max_norm == np.inf
    np.testing.assert_array_equal(run.first_state().w, [1.0, -2.0])


@pytest.mark.parametrize(
    ("more", "key", "says"),
    [
        ("rounds = 0", "run.rounds", "at least 1"),
        ("min_updates = 3", "run.min_updates", "1 to the quorum (2)"),
        ('weighting = "samples"\nweight_cap = 0.5', "run.weight_cap", "at least 1"),
        ('shared = ["lstm."]', "run.shared", "'lstm.' matches no layer"),
        ('rule = { name = "krumm" }', "run.rule.name", "unknown rule 'krumm'; known: "),
        ('rule = { name = "median", f = 1 }', "run.rule.f", "Byzantine updates need a round"),
        ('rule = { name = "mean", f = 1 }', "run.rule.f", "tolerates no Byzantine update"),
        (
            'rule = { name = "mean", f = 1, preaggregation = ["nnm"] }',
            "run.rule.f",
            "tolerates no Byzantine update",
        ),
        (
            'rule = { name = "mean", trim = 1 }',
            "run.rule.trim",
            "unknown key; known: f, preaggregation",
        ),
        ('rule = { name = "krum" }', "run.rule.f", "missing"),
        ('rule = { name = "krum", f = 0 }', "run.rule.name", "at least 3 updates, a round may"),
        ("rule = { f = 1 }", "run.rule.name", "missing"),
        ('rule = { name = "mean", f = -1 }', "run.rule.f", "expected int from 0"),
        (
            'rule = { name = "median", preaggregation = ["nmm"] }',
            "run.rule.preaggregation[0]",
            "known: arc, bucketing,",
        ),
        (
            'rule = { name = "median", preaggregation = "nnm" }',
            "run.rule.preaggregation",
            "expected a list",
        ),
        (
            'rule = { name = "median", preaggregation = [{ name = "bucketing", sise = 2 }] }',
            "run.rule.preaggregation[0].sise",
            "did you mean 'size'?",
        ),
        ("settings = { step = 1 }", "run.settings.step", "did you mean 'steps'?"),
        ("settings = { steps = -1 }", "run.settings.steps", "from 0 to 65536"),
        ("client_fraction = 0.0", "run.client_fraction", "expected float"),
        ("quorums = 1", "run.quorums", "did you mean 'quorum'?"),
    ],
)
def test_run_section_refusals_name_the_key(workplace, more, key, says):
    said = refused(workplace(more))
    assert said.startswith(f"aggregator.toml: {key}"), said
    assert says in said


@pytest.mark.parametrize(
    ("old", "new", "key", "says"),
    [
        ("quorum = 2", "quorum = 0", "run.quorum", "at least 1, got 0"),
        ("quorum = 2", "", "run.quorum", "missing"),
        ('"60s"', '"60"', "run.deadline", "expected"),
        ('"60s"', '"0s"', "run.deadline", "more than 0 seconds"),
        ('"fedavg"', '"fedavgg"', "run.method", "fedavg, fedavgm"),
        ('fleet = "north"', 'fleet = "no/rth"', "fleet", "expected str"),
        ("[run]", 'admission = { max_norm = "big" }\n[run]', "admission.max_norm", "known: auto"),
        ("[run]", "colour = 1\n[run]", "colour", "unknown key"),
    ],
)
def test_other_refusals_name_the_key(workplace, old, new, key, says):
    said = refused(workplace(replacing=[(old, new)]))
    assert said.startswith(f"aggregator.toml: {key}"), said
    assert says in said


@pytest.mark.parametrize(
    ("quorum", "rule", "key", "says"),
    [
        (
            4,
            'name = "median", f = 2',
            "f",
            "2 Byzantine updates need a round of more than 4, it may have 4",
        ),
        (6, 'name = "krum", f = 2', "f", "at least 7 updates, a round may have 6"),
        (10, 'name = "bulyan", f = 2', "f", "at least 11 updates, a round may have 10"),
        (5, 'name = "trimmed_mean", f = 1, b = 3', "f", "at least 7 updates"),
        (9, 'name = "multi_krum", f = 2, m = 8', "f", "at least 10 updates"),
        (
            5,
            'name = "median", f = 1, preaggregation = [{ name = "bucketing", size = 4 }]',
            "preaggregation",
            "needs at least 9 updates, a round may have 5",
        ),
    ],
)
def test_a_round_too_small_for_its_rule_is_refused(workplace, quorum, rule, key, says):
    more = f"rule = {{ {rule} }}"
    said = refused(workplace(more, [("quorum = 2", f"quorum = {quorum}")]))
    assert said.startswith(f"aggregator.toml: run.rule.{key}: "), said
    assert says in said


SPLIT = ("pfgl", "cnfgnn", "lstm_cnn_fedavg", "lstm_cnn_pfl")
SUITED = {
    "fedgru": "cells-gru-1",
    "fedntp": "cells-lstm-1",
    "fedrep": "load-mlp",
    "fedbabu": "load-mlp",
} | dict.fromkeys(SPLIT, "chargers-1")


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"analytic"}))
def test_a_method_takes_a_rule_or_says_that_it_has_its_own(tmp_path, method):
    """What status and check leave out must be what a run refuses."""
    file = tmp_path / "aggregator.toml"
    file.write_text(
        f'fleet = "north"\nstate = "state"\n[run]\nmethod = "{method}"\n'
        f'bundle = "{SUITED.get(method, "cells-mlp-1")}"\nrounds = 3\n'
        f'quorum = {1 if method == "fedasync" else 5}\nrule = {{ name = "median" }}\n'
    )
    if METHODS[method].own:
        assert refused(file).startswith("aggregator.toml: run.rule: expected none")
    else:
        assert bind(AggregatorConfig.load(file, {})).config.run.rule["name"] == "median"


@pytest.mark.extension
@pytest.mark.parametrize(
    ("method", "kind", "known"),
    [
        ("pfgl", "conv2d", "pfgl or diffusion"),
        ("pfgl", "graphnet", "pfgl or diffusion"),
        ("cnfgnn", "pfgl", "graphnet or diffusion"),
        ("lstm_cnn_fedavg", "pfgl", "conv2d"),
        ("lstm_cnn_pfl", "diffusion", "conv2d"),
    ],
)
def test_a_graph_that_the_methods_name_does_not_allow_is_refused(tmp_path, method, kind, known):
    said = refused(split(tmp_path, method, kind))
    assert f"run.graph.kind: expected {known} for method {method!r}, got {kind!r}" in said


@pytest.mark.extension
def test_every_split_method_states_its_graphs():
    assert {name for name in METHODS if METHODS[name].kinds} == set(SPLIT)


@pytest.mark.extension
@pytest.mark.parametrize("method", ["lstm_cnn_fedavg", "lstm_cnn_pfl"])
def test_an_lstm_method_refuses_a_model_without_lstm_layers(tmp_path, method):
    said = refused(split(tmp_path, method, "conv2d"))
    assert (
        "run.bundle: expected a model with a layer 'lstm' (gridfed-aggregator export chargers-"
        in said
    )


def split(tmp_path, method, kind):
    file = tmp_path / "aggregator.toml"
    file.write_text(
        f'fleet = "north"\nstate = "state"\n[run]\nmethod = "{method}"\nquorum = 3\n'
        f'bundle = "chargers-1"\ngraph = {{ kind = "{kind}", capacity = 4 }}\n'
        f"[admission]\ndaily_bytes = {2**36}\n"
    )
    return file


def closed_form(tmp_path, bundle="load-analytic", more=""):
    file = tmp_path / "aggregator.toml"
    file.write_text(
        f'fleet = "north"\nstate = "state"\n[run]\nmethod = "analytic"\n'
        f'bundle = "{bundle}"\nquorum = 5\n{more}\n'
    )
    return file


@pytest.mark.extension
def test_a_model_in_closed_form_is_told_what_it_needs(tmp_path):
    said = refused(closed_form(tmp_path, "load-mlp"))
    assert "'load-mlp' has no graph 'statistic', which method 'analytic' needs" in said
    said = refused(closed_form(tmp_path, more='rule = { name = "median" }'))
    assert "run.rule: expected none" in said
    votes = 'settings = { combine = "votes" }\nrule = { name = "median", f = 2 }'
    assert bind(AggregatorConfig.load(closed_form(tmp_path, more=votes), {})).limits.size == 20_014


def test_fewer_answers_at_the_deadline_count(workplace):
    more = 'rule = { name = "krum", f = 1 }\nmin_updates = 4'
    said = refused(workplace(more, [("quorum = 2", "quorum = 9")]))
    assert "at least 5 updates, a round may have 4" in said
    assert bind(
        AggregatorConfig.load(workplace(more.replace("4", "5"), [("quorum = 2", "quorum = 9")]), {})
    )


@pytest.mark.parametrize("cap", ["", "weight_cap = 2.0"])
def test_liars_that_may_choose_their_weight_are_refused(workplace, cap):
    more = f'weighting = "samples"\nrule = {{ name = "median", f = 1 }}\n{cap}'
    said = refused(workplace(more, [("quorum = 2", "quorum = 5")]))
    assert said.startswith("aggregator.toml: run.weighting: with f > 0 expected 'uniform'"), said


def test_missing_bundle_names_the_shipped_ones(workplace):
    said = refused(workplace(replacing=[('"toy"', '"nothing-here"')]))
    assert re.match(r"aggregator.toml: run.bundle: bundle 'nothing-here' is neither", said)


def test_bundle_without_the_graph_of_the_contract(workplace, monkeypatch):
    wanted = {"fedavg": {"train": Ask(("robust_gradient",), up=Up.DELTA)}}
    monkeypatch.setattr("aggregator.config.binding.CONTRACTS", wanted)
    said = refused(workplace())
    assert "run.bundle: 'toy' has no graph 'robust_gradient'" in said
    assert "it has: forecast, gradient" in said


def test_an_edited_manifest_is_refused(workplace):
    path = workplace()
    bundle = path.parent / "toy"
    raw = (bundle / "manifest.json").read_bytes().replace(b'"gradient"', b'"gradiemt"')
    (bundle / "manifest.json").write_bytes(raw)
    assert "not signed by a trusted key" in refused(path)


@pytest.mark.parametrize("name", ["initial.f32", "gradient.onnx"])
def test_a_damaged_file_is_named(workplace, name):
    path = workplace()
    (path.parent / "toy" / name).write_bytes(b"other")
    assert f"toy/{name}: digest" in refused(path)


def test_a_bundle_signed_by_a_stranger_is_refused(workplace):
    path = workplace()
    (path.parent / "state" / "root.pub").write_text(keys.from_seed(b"s" * 32).public.hex())
    assert "not signed by a trusted key" in refused(path)


def test_environment_wins_over_the_file_and_says_so(workplace):
    loaded = load_with_origins(workplace(), {"GRIDFED_AGGREGATOR_RUN__QUORUM": "5"})
    assert loaded.value.run.quorum == 5
    assert loaded.origins["run.quorum"] == "GRIDFED_AGGREGATOR_RUN__QUORUM"


def test_plain_mqtt_to_another_host_is_refused(workplace):
    config = AggregatorConfig.load(workplace(), {})
    with pytest.raises(SettingsError, match=r"aggregator\.toml: broker: mqtt:// to far\.example"):
        broker_of(config, "mqtt://far.example")
    assert broker_of(config, "mqtt://127.0.0.1").client_id == "north._agg"


def test_a_fleet_does_not_wait_long_for_the_aggregator_after_its_broker_is_back(workplace):
    """A device has the patience of ten minutes; the one that all of them wait for has less."""
    config = AggregatorConfig.load(workplace(), {})
    assert broker_of(config, "mqtt://127.0.0.1").reconnect_max == 15.0


def test_everything_personal_must_be_said_aloud_and_then_binds(workplace):
    assert bind(AggregatorConfig.load(workplace("shared = []"), {})).spec.shared_size == 0


@pytest.mark.extension
def test_the_example_is_complete_and_binds(tmp_path):
    example = Path(__file__).parents[2] / "examples" / "aggregator.toml"
    loaded = load_with_origins(shutil.copy(example, tmp_path / "aggregator.toml"), {})
    run = bind(loaded.value)
    assert run.shared == ("body.",)
    assert run.spec.shared_size == 9088
    text = example.read_text("utf-8")
    for key, _, _ in shown(loaded.value, loaded.origins):
        assert re.search(rf"\b{key.split('.')[-1]} =", text) or key in KEPT_BACK, key
