"""Profiles in closed form, the server's half: the passes of ``profile_form`` called directly, as oracle."""

from __future__ import annotations

import numpy as np
import pytest

from aggregator.extensions.analytic.profile_fleet import PASSES, PRIOR
from aggregator.extensions.analytic.settings import Analytic, fault_of
from aggregator.methods import METHODS as SERVERS
from aggregator.methods import OPEN, Rounds, Setup
from aggregator.rules import bind
from edge_sdk.app.schema import SchemaError
from edge_sdk.extensions.analytic.profile_features import profile_rows
from edge_sdk.extensions.analytic.profile_form import (
    RELAXATION,
    STAGES,
    naive_noise,
    next_coefficients,
    scaled_design,
    stage_of,
    stage_statistics,
)
from edge_sdk.extensions.analytic.profile_section import WIDTH, ProfileSection
from edge_sdk.extensions.analytic.reweighting import QuantileLoss
from edge_sdk.extensions.analytic.statistics import Statistic, to_vector, total
from edge_sdk.protocol.contract.method import Closed, Member, Task, Unlearned, Update
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from tests.edge_sdk.extensions.analytic import day_fleet

LEARNED = (4, 8)
SECTION = ProfileSection("profile-1", (0.0,) * WIDTH, 2, stages=LEARNED)
SPEC = ParamSpec.of(SECTION.layers(24))
PLACES = {one.name: slice(one.offset, one.offset + one.size) for one in SPEC.layers}
LOSS = QuantileLoss(floor=SECTION.floor)
TWO = ("a", "b")


def device(seed, rows=600):
    draw = np.random.default_rng(seed)
    design = draw.normal(size=(rows, WIDTH)).astype(np.float32)
    truth = np.zeros(WIDTH)
    truth[:5] = draw.normal(size=5)
    stages = np.array(LEARNED)[draw.integers(0, 2, rows)]
    return design, design @ truth + 0.2 * draw.standard_t(3, rows), stages, 0.1 + 0.1 * seed


def sums_of(one, coefficients):
    design, targets, stages, noise = one
    return stage_statistics(design, targets, stages, coefficients, LOSS, noise=noise)


def sent(one, vector, *, weighted):
    """Return what a device sends, as float32."""
    prior = vector[PLACES["coefficients"]].reshape(len(STAGES), WIDTH)
    found = sums_of(one, prior if weighted else None)
    parts = [
        np.concatenate([getattr(found[stage], name) for stage in LEARNED])
        for name in ("gram", "cross", "squares", "residuals")
    ]
    return to_vector(Statistic(*parts, float(len(one[1]))))


def first():
    vector = np.random.default_rng(9).normal(size=SPEC.size).astype(np.float32)
    vector[PLACES["coefficients"]] *= 0.1
    return vector


def server(quorum=2, *, rule="mean", limit=None, **settings):
    row = SERVERS["analytic"]
    rounds = Rounds(quorum=quorum, deadline=60.0, limit=limit)
    return row.half(Setup(bind(rule), row.settings(**settings), rounds, SPEC, analytic=SECTION))


def trained(half, devices):
    """Run all passes over devices in memory; return the state and the tasks that were sent."""
    state, _ = half.apply(half.init(first()), OPEN)
    effects = ()
    for name in devices:
        state, more = half.apply(state, Member(name, present=True))
        effects += more
    tasks = []
    while state.is_open:
        asked = {one.to: one for one in effects if isinstance(one, Task)}
        tasks.append(asked)
        effects = ()
        for name, one in devices.items():
            task = asked[name]
            vector = sent(one, task.arrays["w"], weighted=task.values["weighted"] > 0.0)
            assert not fault_of_vector(vector)
            state, more = half.apply(state, Update(name, state.round, task.base, vector))
            effects += more
    return state, tasks, effects


def fault_of_vector(vector):
    manifest = type("Manifest", (), {"analytic": SECTION})
    return fault_of(manifest, Analytic(), vector)


def direct(devices, *, passes=PASSES, learned=LEARNED, vector=None, places=PLACES):
    """Return medians by stage, and each device's medians of all others."""
    vector = first() if vector is None else vector
    begun = vector[places["coefficients"]].reshape(len(STAGES), WIDTH).astype(np.float64)
    median, others = begun, dict.fromkeys(devices, begun)
    for number in range(passes):
        step = RELAXATION if 0 < number < passes - 1 else 1.0
        # all devices weigh their rows under one vector; in the last pass each under that of all others
        seen = others if number == passes - 1 else dict.fromkeys(devices, median)
        own = {name: sums_of(one, seen[name].astype(np.float32)) for name, one in devices.items()}

        def solved(names, step=step, own=own, before=median):
            whole = {s: total({name: own[name][s] for name in names}) for s in learned}
            after = next_coefficients(before, whole, PRIOR / len(names), step=step, towards=begun)
            return begun + weights_of(learned) @ (after - begun)[list(learned)]

        median, others = solved(devices), {n: solved(set(devices) - {n}, 1.0) for n in devices}
    return median, others


def weights_of(learned):
    """Return how far each stage follows each taught one."""
    places = np.log(np.array(STAGES)[list(learned)])
    return np.array(
        [[np.interp(np.log(s), places, one) for one in np.eye(len(learned))] for s in STAGES]
    )


def test_the_passes_are_those_of_the_form_called_directly():
    devices = {"a": device(1), "b": device(2), "c": device(3)}
    state, tasks, effects = trained(server(quorum=3), devices)
    median, others = direct(devices)
    assert (state.version, state.is_open) == (PASSES, False)
    assert [one["a"].values["weighted"] for one in tasks] == [1.0] * PASSES
    layer = state.w[PLACES["coefficients"]].reshape(len(STAGES), WIDTH)
    np.testing.assert_allclose(layer, median, rtol=0, atol=2e-3)
    layer = state.others["a"][PLACES["coefficients"]].reshape(len(STAGES), WIDTH)
    np.testing.assert_allclose(layer, others["a"], rtol=0, atol=2e-3)
    assert isinstance(effects[-1], Closed)


def test_everything_else_in_the_vector_stays_the_bundles():
    state, _, _ = trained(server(passes=2), {"a": device(1), "b": device(2)})
    begun, learned = first(), np.zeros(SPEC.size, np.bool_)
    learned[PLACES["coefficients"]] = True
    assert (state.w[~learned] == begun[~learned]).all()
    assert (state.w[learned] != begun[learned]).all()


def test_a_stage_that_no_device_has_moves_as_the_nearest_taught_one():
    design, targets, _, noise = device(1)
    old = design, targets, np.full(len(targets), LEARNED[1]), noise
    half = server(passes=1)
    state, _ = half.apply(half.init(first()), OPEN)
    found = sums_of(old, None)[LEARNED[1]]
    gram = np.concatenate([np.zeros_like(found.gram), found.gram])
    cross = np.concatenate([np.zeros_like(found.cross), found.cross])
    rest = (np.append(0.0, one) for one in (found.squares, found.residuals))
    vector = to_vector(Statistic(gram, cross, *rest, 600.0))
    for name in TWO:
        state, _ = half.apply(state, Member(name, present=True))
        assert not fault_of_vector(vector)
        state, _ = half.apply(state, Update(name, state.round, 0, vector))
    layer, begun = (
        vector[PLACES["coefficients"]].reshape(len(STAGES), WIDTH) for vector in (state.w, first())
    )
    moved = layer - begun
    assert (np.abs(moved) > 0.0).any()
    np.testing.assert_allclose(moved, np.tile(moved[-1], (len(STAGES), 1)), rtol=0, atol=1e-12)


def test_a_stage_between_two_taught_ones_moves_between_them():
    state, _, _ = trained(server(passes=1), {"a": device(1), "b": device(2)})
    begun = first()[PLACES["coefficients"]].reshape(len(STAGES), WIDTH).astype(np.float64)
    moved = state.w[PLACES["coefficients"]].reshape(len(STAGES), WIDTH) - begun
    share = np.log(14 / 7) / np.log(28 / 7)
    wanted = (1.0 - share) * moved[4] + share * moved[8]
    np.testing.assert_allclose(moved[STAGES.index(14)], wanted, rtol=0, atol=1e-12)
    np.testing.assert_allclose(moved[0], moved[4], rtol=0, atol=1e-12)


def test_a_removed_device_leaves_nothing_in_the_vector():
    half = server(passes=3)
    state, _, _ = trained(half, {"a": device(1), "b": device(2)})
    state, _ = half.apply(state, Unlearned("b"))
    begun = first()
    assert (state.w[PLACES["expected"]] == begun[PLACES["expected"]]).all()
    assert set(state.held) == {"a"}
    state, _ = half.apply(state, Unlearned("a"))
    assert (state.w == begun).all()


def test_sums_that_no_record_gives_are_refused():
    vector = sent(device(1), first(), weighted=True)
    assert fault_of_vector(vector) == ""
    large, swapped, empty = np.array(vector), np.array(vector), np.array(vector)
    large[:-1] *= np.float32(1e14)
    swapped[:-1] *= np.float32(-1.0)
    empty[-1] = 0.0
    found = [fault_of_vector(one) for one in (large, swapped, empty)]
    assert [one.partition(" ")[0] for one in found] == ["trace", "a", "count"]


@pytest.mark.parametrize("settings", [{"combine": "votes"}, {"noise": 1.0, "clip_norm": 1.0}])
def test_votes_and_noise_are_refused(settings):
    with pytest.raises(SchemaError, match="for a bundle of profiles"):
        server(rule="median" if "combine" in settings else "mean", **settings)


def test_the_settings_say_how_many_rounds_a_run_has():
    state, _, _ = trained(server(limit=2), {"a": device(1), "b": device(2)})
    assert state.version == 2


def test_devices_in_memory_and_the_server_give_the_passes_of_the_form_called_directly():
    manifest = day_fleet.manifest_of()
    loads = [day_fleet.load_of(seed, days) for seed, days in ((0, 45), (1, 40), (2, 50))]
    begun = day_fleet.initial_of(manifest, loads)
    frames = {
        name: day_fleet.frame_of(load, manifest) for name, load in zip("abc", loads, strict=True)
    }
    halves = {name: day_fleet.half_of(manifest, one, name) for name, one in frames.items()}
    states = {name: half.init(begun) for name, half in halves.items()}
    row = SERVERS["analytic"]
    given = Rounds(quorum=3, deadline=60.0), manifest.spec()
    server_half = row.half(
        Setup(bind("mean"), row.settings(passes=4), *given, analytic=manifest.analytic)
    )
    state, _ = server_half.apply(server_half.init(begun), OPEN)
    waiting = []
    for name in frames:
        state, effects = server_half.apply(state, Member(name, present=True))
        waiting += effects
    while state.is_open:
        task = waiting.pop(0)
        states[task.to], (sent,) = halves[task.to].apply(states[task.to], task)
        fault = fault_of(manifest, Analytic(), sent.vector)
        assert not fault
        update = Update(task.to, state.round, task.base, sent.vector)
        state, effects = server_half.apply(state, update)
        waiting += [one for one in effects if isinstance(one, Task)]
    places = {one.name: slice(one.offset, one.offset + one.size) for one in manifest.spec().layers}
    scale = begun[places["scale"]].astype(np.float64)
    devices = {}
    for name, frame in frames.items():
        origins = day_fleet.issues_of(frame)
        rows = profile_rows(day_fleet.record_of(frame), origins, 24)
        goals = (frame.truth(origins) / rows.level[:, None] - rows.base).ravel()
        stages = np.repeat(stage_of(rows.known), 24)
        noise = np.nanmean(naive_noise(rows, goals)[stages >= stage_of(np.array(7))])
        devices[name] = scaled_design(rows, scale), goals, stages, float(noise)
    median, _ = direct(devices, passes=4, learned=(8,), vector=begun, places=places)
    found = state.w[places["coefficients"]].reshape(median.shape)
    told, right = (devices["a"][0] @ one[-1].astype(np.float32) for one in (found, median))
    np.testing.assert_allclose(told, right, rtol=0, atol=2e-3)
