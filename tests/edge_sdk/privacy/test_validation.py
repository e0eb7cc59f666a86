"""What cannot be kept is refused, by its key; what can is calibrated as the table says."""

from __future__ import annotations

import dataclasses
import math
from functools import partial

import pytest

from edge_sdk.app.settings import SettingsError, from_table
from edge_sdk.bundle import Bundle as OpenBundle
from edge_sdk.bundle import TrustedKeys
from edge_sdk.errors import ConfigError
from edge_sdk.forecasting.windows import FILL
from edge_sdk.privacy import PrivacySection
from edge_sdk.privacy import noise_calibration as plans
from edge_sdk.privacy.ledger import PrivacyAccount
from edge_sdk.privacy.noise import epsilon_of, sigma_for
from edge_sdk.privacy.noise_calibration import DeviceFacts
from edge_sdk.privacy.validation import plan_of, refuse_method
from edge_sdk.protocol.contract.manifest import (
    Feature,
    Golden,
    GraphFile,
    Loss,
    Manifest,
    Target,
    Training,
    Window,
)
from edge_sdk.protocol.contract.method import CONTRACTS, LOSS, Ask, Up

SIGNATURES = {
    "gradient": (("p", "x", "y"), ("loss", "g")),
    "forecast": (("p", "x"), ("yhat",)),
    "clipped_gradient": (("p", "x", "y", "bound"), ("loss", "g")),
}


def manifest(*, graphs=("gradient", "forecast", "clipped_gradient"), features=(), scale="device"):
    lookback = 4
    fixed = {"low": 0.0, "high": 5.0} if scale == "fixed" else {}
    return Manifest(
        name="linear",
        version=1,
        min_sdk="0.1.0",
        layers=(("body", (4,)),),
        shared=("",),
        window=Window(lookback, 2, 1800),
        features=(Feature("load", "target", "kWh"), *features),
        target=Target("elec.import.energy", "kWh", "level", scale, **fixed),
        loss=Loss("mse"),
        training=Training(optimiser="sgd", rate=0.1, batch=8, steps=3, minibatch="fresh"),
        graphs={name: GraphFile(f"{name}.onnx", *SIGNATURES[name]) for name in graphs},
        golden=Golden(tuple((0.0,) * (1 + len(features)) for _ in range(lookback)), (0.0, 0.0)),
    )


def facts(**changes):
    return DeviceFacts(manifest(**changes), keep=17_520, max_steps=4, shared=1000)


def section(mechanism, mode="honest", budget=None, **others):
    budget = {"epsilon": 10.0} if budget is None else budget
    table = {"mechanism": mechanism, "mode": mode, "budget": budget, **others}
    return from_table(PrivacySection, table, "privacy")


NONE = {"name": "none"}
INPUT = {"name": "gaussian", "point": "input", "range": [0.0, 5.0]}
UPDATE = {"name": "gaussian", "point": "update", "clip_norm": 1.0, "noise_multiplier": 8.0}
GRADIENT = {"name": "gaussian", "point": "gradient", "clip_norm": 1.0, "noise_multiplier": 64.0}
GRADIENT["range"] = [0.0, 5.0]
FLIP = {"name": "sign_flip", "point": "sign", "epsilon": 0.001}
NBAFL = {"name": "gaussian", "point": "update", "clip_norm": 1.0, "calibration": "nbafl"}
NBAFL |= {"epsilon": 10.0, "formula": {"samples": 1000}}
WEATHER = Feature("t", "stream", "°C", stream="weather.temperature", low=-20.0, high=40.0)

REFUSED = {
    "budget.epsilon of 0": (
        partial(section, INPUT, budget={"epsilon": 0.0}),
        "privacy.budget.epsilon",
    ),
    "budget.epsilon below 0": (
        partial(section, INPUT, budget={"epsilon": -1.0}),
        "privacy.budget.epsilon",
    ),
    "epsilon that is no number": (
        partial(section, INPUT, budget={"epsilon": math.nan}),
        "privacy.budget.epsilon",
    ),
    "no budget": (partial(section, UPDATE, budget={}), "privacy.budget.epsilon"),
    "mechanism.epsilon of 0": (
        partial(section, FLIP | {"epsilon": 0.0}),
        "privacy.mechanism.epsilon",
    ),
    "delta of 0": (
        partial(section, INPUT, budget={"epsilon": 1.0, "delta": 0.0}),
        "privacy.budget.delta",
    ),
    "delta of 1": (
        partial(section, INPUT, budget={"epsilon": 1.0, "delta": 1.0}),
        "privacy.budget.delta",
    ),
    "delta above one in N": (
        partial(section, INPUT, budget={"epsilon": 1.0, "delta": 1 / 17_520}),
        "privacy.budget.delta",
    ),
    "classical above 1": (
        partial(section, INPUT | {"calibration": "classical"}, budget={"epsilon": 1.01}),
        "privacy.mechanism.calibration",
    ),
    "classical above 1 for an update": (
        partial(
            section,
            {"name": "gaussian", "point": "update", "clip_norm": 1.0, "epsilon": 2.0}
            | {"calibration": "classical"},
        ),
        "privacy.mechanism.calibration",
    ),
    "measured numbers beside update noise": (
        partial(section, UPDATE, metrics="sent"),
        "privacy.metrics",
    ),
    "numbers beside gradient noise": (
        partial(section, GRADIENT, metrics="sent"),
        "privacy.metrics",
    ),
    "laplace at the gradient": (
        partial(section, {"name": "laplace", "point": "gradient"}),
        "privacy.mechanism.point",
    ),
    "signs of an update": (partial(section, FLIP | {"point": "update"}), "privacy.mechanism.point"),
    "gaussian nowhere": (partial(section, {"name": "gaussian"}), "privacy.mechanism.point"),
    "clip at the input": (
        partial(section, INPUT | {"clip_norm": 1.0}),
        "privacy.mechanism.clip_norm",
    ),
    "range at the update": (
        partial(section, UPDATE | {"range": [0.0, 1.0]}),
        "privacy.mechanism.range",
    ),
    "noise with none": (
        partial(section, NONE | {"noise_multiplier": 1.0}, "none"),
        "privacy.mechanism.noise_multiplier",
    ),
    "mode with none": (partial(section, NONE, "honest"), "privacy.mode"),
    "no mode": (partial(section, INPUT, "none"), "privacy.mode"),
    "no clip": (
        partial(section, {"name": "gaussian", "point": "update", "noise_multiplier": 1.0}),
        "privacy.mechanism.clip_norm",
    ),
    "no range": (
        partial(section, {"name": "gaussian", "point": "input"}),
        "privacy.mechanism.range",
    ),
    "a range upside down": (
        partial(section, INPUT | {"range": [5.0, 0.0]}),
        "privacy.mechanism.range",
    ),
    "no range at the gradient": (
        partial(section, GRADIENT | {"range": []}),
        "privacy.mechanism.range",
    ),
    "a range without end": (
        partial(section, INPUT | {"range": [0.0, math.inf]}),
        "privacy.mechanism.range",
    ),
    "two amounts": (
        partial(section, UPDATE | {"epsilon": 1.0}),
        "privacy.mechanism.noise_multiplier",
    ),
    "no amount": (
        partial(section, {"name": "gaussian", "point": "update", "clip_norm": 1.0}),
        "privacy.budget.max_releases",
    ),
    "an epsilon beyond its end": (
        partial(section, INPUT | {"epsilon": 11.0}),
        "privacy.mechanism.epsilon",
    ),
    "laplace that becomes less": (
        partial(section, INPUT | {"name": "laplace", "epsilon": 1.0}),
        "privacy.mechanism.epsilon",
    ),
    "amplification": (
        partial(section, UPDATE, budget={"epsilon": 10.0, "amplification": True}),
        "privacy.budget.amplification",
    ),
    "a unit that is finer than the noise": (
        partial(section, UPDATE, budget={"epsilon": 10.0, "unit": "reading"}),
        "privacy.budget.unit",
    ),
    "one release above the budget": (
        partial(section, UPDATE | {"noise_multiplier": 0.1}),
        "privacy.budget.epsilon",
    ),
    "one round above the budget": (
        partial(section, GRADIENT | {"noise_multiplier": 0.5}),
        "privacy.budget.epsilon",
    ),
    "a paper's noise in honest mode": (partial(section, NBAFL), "privacy.mechanism.calibration"),
    "a paper's formula without its numbers": (
        partial(section, NBAFL | {"formula": {}}, "paper"),
        "privacy.mechanism.formula.samples",
    ),
    "a number that the paper does not know": (
        partial(section, NBAFL | {"formula": {"samples": 9, "round": 3}}, "paper"),
        "privacy.mechanism.formula.round",
    ),
    "a budget where nothing is claimed": (
        partial(section, NBAFL, "paper"),
        "privacy.budget.epsilon",
    ),
}


@pytest.mark.extension
@pytest.mark.parametrize("case", REFUSED)
def test_an_invalid_privacy_key_is_refused_by_its_name(case):
    build, key = REFUSED[case]
    with pytest.raises(ConfigError) as refused:
        plan_of(build(), facts())
    assert str(refused.value).startswith(f"{key}: ")


@pytest.mark.extension
def test_a_bundle_without_per_window_clipping_is_refused():
    with pytest.raises(ConfigError, match=r"mechanism.point: .*clipped_gradient"):
        plan_of(section(GRADIENT), facts(graphs=("gradient", "forecast")))


@pytest.mark.extension
def test_a_second_stream_must_be_public_or_have_a_range():
    with pytest.raises(ConfigError, match=r"mechanism.public_streams: weather.temperature"):
        plan_of(section(INPUT), facts(features=(WEATHER,)))
    public = INPUT | {"public_streams": ["weather.temperature"]}
    assert set(plan_of(section(public), facts(features=(WEATHER,))).ranges) == {
        "elec.import.energy"
    }
    hidden = INPUT | {"stream_ranges": {"weather.temperature": [-20.0, 40.0]}}
    assert len(plan_of(section(hidden), facts(features=(WEATHER,))).ranges) == 2
    with pytest.raises(ConfigError, match=r"not both"):
        plan_of(section(public | hidden), facts(features=(WEATHER,)))
    with pytest.raises(ConfigError, match=r"is the target and cannot be public"):
        plan_of(section(INPUT | {"public_streams": ["elec.import.energy"]}), facts())
    with pytest.raises(ConfigError, match=r"ranges.cell.x: the bundle does not read"):
        plan_of(section(INPUT | {"stream_ranges": {"cell.x": [0.0, 1.0]}}), facts())


def test_an_unknown_key_of_the_section_is_refused():
    with pytest.raises(SettingsError, match="unknown key; did you mean 'noise_multiplier'"):
        section(UPDATE | {"multiplyer": 1.0})
    with pytest.raises(SettingsError, match=r"mechanism: missing"):
        from_table(PrivacySection, {}, "meter.toml")


@pytest.mark.extension
@pytest.mark.parametrize(("unit", "readings"), [("reading", 1), ("day", 48), ("device", 17_520)])
def test_input_noise_is_calibrated_for_the_claimed_unit(unit, readings):
    plan = plan_of(section(INPUT, budget={"epsilon": 1.0, "unit": unit}), facts())
    assert plan.noise == pytest.approx(sigma_for(1.0, 1e-5, math.sqrt(readings)))
    worth = PrivacyAccount(limit=plan.limit).plus(plan.charge(count=35_040)).epsilon()
    assert worth == pytest.approx(1.0, rel=1e-6)  # each reading is perturbed once


@pytest.mark.extension
def test_input_noise_given_by_size_has_the_computed_epsilon():
    plan = plan_of(section(INPUT | {"noise_multiplier": 0.1}, budget={"epsilon": 92.0}), facts())
    worth = PrivacyAccount(limit=plan.limit).plus(plan.charge()).epsilon()
    assert worth == pytest.approx(91.817, rel=1e-4)


@pytest.mark.extension
def test_laplace_at_the_input_is_calibrated_for_the_l1_sensitivity():
    laplace = INPUT | {"name": "laplace"}
    assert plan_of(section(laplace, budget={"epsilon": 0.5}), facts()).noise == 2.0
    day = plan_of(section(laplace, budget={"epsilon": 0.5, "unit": "day"}), facts())
    assert day.noise == 96.0


@pytest.mark.extension
def test_add_remove_adjacency_of_windows_is_refused():
    fewer = GRADIENT | {"adjacency": "add-remove"}
    with pytest.raises(ConfigError, match=r"privacy\.mechanism\.adjacency: .* use 'replace'"):
        plan_of(section(fewer), facts())
    assert plan_of(section(GRADIENT, budget={"epsilon": 50.0}), facts()).cost == 32.0


@pytest.mark.parametrize(("neighbours", "epsilon"), [("add-remove", 9.9973), ("replace", 24.382)])
def test_a_hundred_updates_cost_the_composed_epsilon(neighbours, epsilon):
    update = UPDATE | {"noise_multiplier": 5.0, "adjacency": neighbours}
    plan = plan_of(section(update, budget={"epsilon": 30.0}), facts())
    worth = PrivacyAccount(limit=plan.limit).plus(plan.charge(count=100)).epsilon()
    assert worth == pytest.approx(epsilon, rel=1e-4)


def test_noise_for_a_number_of_updates_is_minimal():
    update = {"name": "gaussian", "point": "update", "clip_norm": 2.0}
    plan = plan_of(section(update, budget={"epsilon": 8.0, "max_releases": 50}), facts())
    assert PrivacyAccount(limit=plan.limit).left(plan.charge(releases=1)) == 50


@pytest.mark.extension
def test_gradient_noise_is_charged_per_window_or_per_reading():
    window = plan_of(section(GRADIENT), facts())
    assert window.cost == 32.0
    reading = plan_of(section(GRADIENT, budget={"epsilon": 10.0, "unit": "reading"}), facts())
    assert facts().occurrences == 8  # of 4 + 2 carried forward + 2 ahead; a batch has 8
    assert reading.cost == 4.0


@pytest.mark.extension
def test_noise_for_a_number_of_rounds_counts_their_steps():
    gradient = {k: v for k, v in GRADIENT.items() if k != "noise_multiplier"}
    plan = plan_of(section(gradient, budget={"epsilon": 8.0, "max_releases": 25}), facts())
    worth = PrivacyAccount(limit=plan.limit).plus(plan.charge(count=25 * 4)).epsilon()
    assert worth == pytest.approx(8.0, rel=1e-6)


@pytest.mark.extension
def test_signs_cost_every_coordinate_or_are_computed_from_a_gaussian_release():
    flip = plan_of(section(FLIP, budget={"epsilon": 2.0}), facts())
    assert 1.0 / flip.cost == pytest.approx(1000 * 0.001)
    bound = {
        "name": "sign_gaussian",
        "point": "sign",
        "coordinate_bound": 1.0,
        "noise_multiplier": 10.0,
    }
    pure = plan_of(section(bound, budget={"epsilon": 200.0}), facts())
    assert 1.0 / pure.cost == pytest.approx(1000 * 0.15965, rel=1e-4)
    clip = {"name": "sign_gaussian", "point": "sign", "clip_norm": 1.0, "noise_multiplier": 10.0}
    normal = plan_of(section(clip, budget={"epsilon": 2.0}), facts())
    assert (normal.ledger_name, normal.cost) == ("gaussian", 5.0)


@pytest.mark.extension
def test_in_paper_mode_the_ledger_charges_the_actual_noise():
    plan = plan_of(section(NBAFL, "paper", {}), facts())
    assert plan.noise == pytest.approx(9.68961e-4, rel=1e-5)
    assert plan.limit.epsilon == math.inf
    worth = PrivacyAccount(limit=plan.limit).plus(plan.charge()).epsilon()
    assert worth == pytest.approx(epsilon_of(9.68961e-4 / 2, 1e-5), rel=1e-4)
    assert worth > 2e6  # the paper calls this 10
    udp = NBAFL | {"calibration": "udp"}
    udp["formula"] = {"samples": 1000, "rate": 0.01, "steps": 5, "rounds": 25}
    assert plan_of(section(udp, "paper", {}), facts()).noise == pytest.approx(2.399263e-4, rel=1e-6)


@pytest.mark.extension
def test_paper_input_noise_gives_no_bound():
    plan = plan_of(section({"name": "gaussian", "point": "input"}, "paper"), facts())
    assert plan.noise == pytest.approx(0.484481, rel=1e-5)
    assert PrivacyAccount(limit=plan.limit).plus(plan.release()).epsilon() == math.inf


STATISTIC = {"name": "gaussian", "point": "statistic", "clip_norm": 3.0, "range": [0.0, 5.0]}


def closed_form():
    manifest = OpenBundle.open("load-analytic", trust=TrustedKeys()).manifest
    return DeviceFacts(manifest, keep=17_568, max_steps=4, shared=448)


@pytest.mark.extension
def test_noise_for_so_many_statistics_is_just_enough():
    budget = {"epsilon": 8.0, "max_releases": 4}
    plan = plan_of(section(STATISTIC, "honest", budget), closed_form())
    assert plan.limit.unit == "window"
    assert plan.noise == pytest.approx(plan.cost * math.sqrt(4.5 * 3))
    account = PrivacyAccount(limit=plan.limit).plus(*[plan.release()] * 4)
    assert account.epsilon() == pytest.approx(8.0, rel=1e-6)
    assert account.left(plan.release()) == 0
    assert not plan.sends_metrics


@pytest.mark.extension
def test_a_configuration_that_names_the_former_default_of_the_grid_stays_valid():
    given = {"epsilon": 8.0, "max_releases": 4}
    plan = plan_of(section(STATISTIC | {"grid": False}, "honest", given), closed_form())
    assert not plan.is_on_grid


@pytest.mark.extension
def test_a_reading_occurs_in_many_windows_of_a_statistic():
    window, reading = (
        plan_of(
            section(STATISTIC, "honest", {"epsilon": 8.0, "max_releases": 4, "unit": unit}),
            closed_form(),
        )
        for unit in ("window", "reading")
    )
    assert reading.noise / window.noise == pytest.approx(170 + 2 + 1)


@pytest.mark.extension
@pytest.mark.parametrize(
    ("changes", "budget", "words"),
    [
        ({"range": []}, {}, r"mechanism.range: give \[low, high\]"),
        ({"clip_norm": None}, {}, "mechanism.clip_norm: missing"),
        ({"grid": True}, {}, "mechanism.grid: does not apply to gaussian at 'statistic'"),
        ({"name": "laplace"}, {}, "laplace belongs at input or update, not 'statistic'"),
        ({}, {"unit": "device"}, "at 'statistic' a claim is about: window, reading"),
        ({}, {"max_releases": None}, "budget.max_releases: missing"),
    ],
)
def test_a_statistic_that_cannot_be_protected_so_is_refused_by_its_key(changes, budget, words):
    mechanism = {k: v for k, v in {**STATISTIC, **changes}.items() if v is not None}
    given = {k: v for k, v in ({"epsilon": 8.0, "max_releases": 4} | budget).items() if v}
    with pytest.raises(ConfigError, match=words):
        plan_of(section(mechanism, "honest", given), closed_form())


@pytest.mark.extension
def test_noise_on_a_statistic_needs_a_bundle_and_a_method_in_closed_form():
    budget = {"epsilon": 8.0, "max_releases": 4}
    with pytest.raises(ConfigError, match="is no model in closed form"):
        plan_of(section(STATISTIC, "honest", budget), facts())
    plan = plan_of(section(STATISTIC, "honest", budget), closed_form())
    refuse_method(plan, "analytic", CONTRACTS["analytic"])
    with pytest.raises(ConfigError, match="answers 'delta', not a statistic"):
        refuse_method(plan, "fedavg", CONTRACTS["fedavg"])
    update = plan_of(section(UPDATE), facts())
    with pytest.raises(ConfigError, match="set point = 'statistic'"):
        refuse_method(update, "analytic", CONTRACTS["analytic"])


@pytest.mark.extension
def test_methods_that_noise_breaks_are_refused():
    update, flip = plan_of(section(UPDATE), facts()), plan_of(section(FLIP), facts())
    gradient, given = plan_of(section(GRADIENT), facts()), plan_of(section(INPUT), facts())
    for plan in (update, gradient, given):
        refuse_method(plan, "fedavg", CONTRACTS["fedavg"])
    needs = dataclasses.replace(LOSS, needed=True)
    mirror = {"step": Ask(("robust_gradient",), up=Up.WEIGHTS, mirrored=True)}
    losses = {"step": Ask(("gradient",), up=Up.DELTA, report=(needs,))}
    signs = {"step": Ask(("gradient",), up=Up.SIGNS)}
    for plan, contract, key in (
        (update, mirror, "mechanism.point"),
        (update, signs, "mechanism.point"),
        (update, losses, "metrics"),
        (gradient, mirror, "mechanism.point"),
        (flip, CONTRACTS["fedavg"], "mechanism.point"),
    ):
        with pytest.raises(ConfigError, match=rf"privacy.{key}: method 'it'"):
            refuse_method(plan, "it", contract)
    for contract in (mirror, losses):
        refuse_method(given, "it", contract)
    refuse_method(flip, "it", signs)


@pytest.mark.extension
@pytest.mark.parametrize(
    ("mechanism", "mode", "method", "key"),
    [
        (UPDATE, "honest", "bafdp", "mechanism.point"),
        (UPDATE, "honest", "rsa", "mechanism.point"),
        (UPDATE, "honest", "afl", "metrics"),
        (GRADIENT, "honest", "bafdp", "mechanism.point"),
        (GRADIENT, "honest", "afl", "metrics"),
        (INPUT, "honest", "dp_rsa", "mechanism.point"),
        (NONE, "none", "dp_rsa", "mechanism.point"),
        (FLIP, "honest", "fedavg", "mechanism.point"),
        (UPDATE, "honest", "pfgl", "mechanism.point"),
        (GRADIENT, "honest", "cnfgnn", "mechanism.point"),
        (INPUT, "honest", "pfgl", None),
        (NONE, "none", "pfgl", None),
        (INPUT, "honest", "bafdp", None),
        (INPUT, "honest", "afl", None),
        (FLIP, "honest", "dp_rsa", None),
        (GRADIENT, "honest", "rsa", None),
        (UPDATE, "honest", "fedbuff", None),
        (UPDATE, "honest", "nbafl", None),
        (NONE, "none", "bafdp", None),
    ],
)
def test_each_mechanism_supports_the_listed_methods(mechanism, mode, method, key):
    budget = {} if mode == "none" else None
    plan = plan_of(section(mechanism, mode, budget), facts())
    if key is None:
        refuse_method(plan, method, CONTRACTS[method])
    else:
        with pytest.raises(ConfigError, match=rf"privacy.{key}: method '{method}'"):
            refuse_method(plan, method, CONTRACTS[method])


def test_the_occurrences_of_a_reading_include_filled_gaps():
    assert plans.CARRIED == FILL
