"""The measurements of the encodings: damaged blobs, tables and targets, and runs that continue."""

from __future__ import annotations

import numpy as np
import pytest

from edge_sdk.protocol.contract.method import Update
from tools import encodings
from tools.experiments import matrix


def test_damaged_blobs_are_refused_or_finite():
    found = encodings.mutations(20_000, seed=18)
    assert found.total() == 20_000
    assert found.keys() == {"finite", "WRONG_SIZE", "WRONG_ENCODING", "NOT_FINITE"}
    assert found == encodings.mutations(20_000, seed=18)


def test_a_decoder_that_lets_an_infinite_scale_pass_is_noticed(monkeypatch):
    def lax(blob, enc, size):
        scales = np.frombuffer(blob.ljust(2, b"\0")[:2], "<f2").astype("f8")
        return np.repeat(scales, size)

    monkeypatch.setattr(encodings, "unpack_tensor", lax)
    with pytest.raises(ArithmeticError, match="scalars: "):
        encodings.mutations(20_000, seed=18)


def results(mase):
    return {
        encodings.accuracy_name(fleet, enc, seed): {
            "mase": mase if enc == "q4" else 1.0,
            "qs": 1.0,
            "bytes": 10.0,
        }
        for fleet in encodings.FLEETS
        for enc in encodings.ENCODINGS
        for seed in encodings.SEEDS
    }


@pytest.mark.parametrize(("mase", "is_met"), [(1.004, True), (1.006, False), (0.994, False)])
def test_a_change_of_more_than_half_a_percent_misses_the_target(mase, is_met):
    lines, found = encodings.accuracy_report(results(mase))
    assert found is is_met
    assert len(lines) == 2 + len(encodings.FLEETS) * len(encodings.ENCODINGS)


@pytest.mark.parametrize(("worst", "is_met"), [(1.519, True), (1.521, False)])
def test_the_rise_is_that_of_the_worst_attack_over_the_undisturbed_mean(worst, is_met):
    found = {name: {"error": 2.0} for name, _ in encodings.attack_jobs()}
    for name in found:
        if "-alie-" in name:
            found[name] = {"error": 2.0 * (worst if "-q4-" in name else 1.5)}
    lines, met = encodings.attack_report(found)
    assert met is is_met
    assert f"{worst - 1.5:+.3f}" in lines[2]


def test_a_stopped_call_continues(tmp_path):
    begun = []

    def job(number):
        def run():
            begun.append(number)
            return {"error": number}

        return f"job-{number}", run

    jobs = [job(number) for number in range(3)]
    assert encodings.completed(jobs[:1], tmp_path, minutes=1) == {"job-0": {"error": 0}}
    assert encodings.completed(jobs, tmp_path, minutes=0) == {"job-0": {"error": 0}}
    assert len(encodings.completed(jobs, tmp_path, minutes=1)) == 3
    assert begun == [0, 1, 2]


def test_what_arrives_of_quantised_answers_adds_up_to_the_answers():
    answers, sent, rng = np.zeros(200), np.zeros(200), np.random.default_rng(1)
    encoded = matrix.Quantised("q4")
    for round_ in range(1, 40):
        vector = rng.normal(0, 1, 200)
        update = encoded(Update("a", round_, round_ - 1, vector, {"n": 1.0}))
        assert 0 < np.abs(update.vector - vector).max() < 1.0
        answers += vector
        sent += update.vector
    np.testing.assert_allclose(sent + encoded.residual["values"], answers, atol=1e-4)
