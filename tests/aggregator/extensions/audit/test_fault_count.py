"""The number of Byzantine devices that recorded rounds and held-out readings name."""

from __future__ import annotations

import numpy as np
import pytest

from aggregator.extensions.audit.fault_count import FaultCount, fault_counts, named
from aggregator.extensions.audit.held_out import HeldOutError, readings
from aggregator.methods import METHODS, Rounds, Setup
from aggregator.rules import bind
from firmware_sim.attacks.attack_context import AttackContext
from firmware_sim.attacks.model import flipping, gaussian, ipm, scaling
from tests.aggregator.extensions.audit.test_replay import INITIAL, SIZE, Recorder

COUNT, ROUNDS = 11, 4
ATTACKS = (flipping, scaling, gaussian, ipm)


def half_of(rule, f):
    rounds, settings = Rounds(quorum=COUNT), METHODS["fedavg"].settings()
    return METHODS["fedavg"].half(Setup(bind(rule, f=f), settings, rounds))


def recorded(path, seed, planted, attack):
    """A linear model of 40 numbers; devices differ, and the planted ones attack every round."""
    rng = np.random.default_rng(seed)
    aim, own = rng.normal(0, 1, SIZE), rng.normal(0, 0.3, (COUNT, SIZE))
    one = Recorder(path, half_of("geometric_median", (COUNT - 1) // 2))
    for _ in range(ROUNDS):
        noise = rng.normal(0, 0.1, (COUNT, SIZE))
        honest = 0.5 * (one.state.w - (aim + own)) + noise
        scene = AttackContext.among(honest[planted:])
        vectors = [*(attack(scene) for _ in range(planted)), *honest[planted:]]
        places = rng.permutation(COUNT)
        one.send_round({f"m-{place:02}": vectors[place] for place in places})
    x = rng.normal(0, 1, (200, SIZE))
    y = x @ aim + rng.normal(0, 0.1, 200)
    return one, lambda w: float(np.sqrt(np.mean((x @ np.asarray(w, np.float64) - y) ** 2)))


def curve_of(one, score):
    halves = {f: half_of("trimmed_mean", f) for f in range(COUNT // 2 + 1)}
    median = half_of("geometric_median", (COUNT - 1) // 2)
    return fault_counts(one.store, 1, (1, ROUNDS), halves, score, recorded=median, initial=INITIAL)


def test_the_planted_number_is_named_within_one_in_eighteen_of_twenty_runs(tmp_path):
    found = []
    for seed in range(20):
        planted = seed % 5
        one, score = recorded(tmp_path / f"{seed}.db", seed, planted, ATTACKS[seed % 4])
        found.append((planted, named(curve_of(one, score), 0.01).f))
        one.store.close()
    assert sum(abs(planted - f) <= 1 for planted, f in found) >= 18, found


def test_every_round_is_scored_from_the_recorded_model(tmp_path):
    one, score = recorded(tmp_path / "one.db", 3, 2, flipping)
    models = []
    found = curve_of(one, lambda w: models.append(w) or score(w))
    assert [len(each.errors) for each in found] == [ROUNDS] * (COUNT // 2 + 1)
    assert found[2].error == pytest.approx(np.mean(found[2].errors))
    median = half_of("geometric_median", (COUNT - 1) // 2)
    same = fault_counts(
        one.store, 1, (2, 2), {5: median}, lambda w: models.append(w) or 0.0,
        recorded=median, initial=INITIAL,
    )  # fmt: skip
    assert same == [FaultCount(5, (0.0,), 0.0)]
    one.store.close()


def test_an_infinite_error_is_never_named():
    found = [FaultCount(0, (), float("inf")), FaultCount(1, (), 0.5), FaultCount(2, (), 0.4)]
    assert named(found, 0.1).f == 2
    assert named(found, 0.25).f == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("time,kwh\n3600,1.5\n7200,\n", [("elec.import.energy", 3600.0, 1.5)]),
        ("time,kwh\n1970-01-01T02:00:00+01:00,2\n", [("elec.import.energy", 3600.0, 2.0)]),
        (
            "time,elec.import.energy,weather.temperature\n1970-01-01T01:00,2,7\n",
            [("elec.import.energy", 3600.0, 2.0), ("weather.temperature", 3600.0, 7.0)],
        ),
    ],
)
def test_readings_are_a_time_and_a_column_for_each_stream(tmp_path, text, expected):
    (tmp_path / "a.csv").write_text(text)
    found = readings(tmp_path / "a.csv", "elec.import.energy")
    assert [(one.stream, one.time, one.value) for one in found] == expected


def test_a_cell_that_is_no_number_is_named(tmp_path):
    (tmp_path / "a.csv").write_text("time,kwh\n3600,1\nyesterday,1\n")
    with pytest.raises(HeldOutError, match=r"a\.csv: line 3: .*yesterday"):
        list(readings(tmp_path / "a.csv", "elec.import.energy"))
    with pytest.raises(HeldOutError, match=r"missing\.csv"):
        list(readings(tmp_path / "missing.csv", "elec.import.energy"))
