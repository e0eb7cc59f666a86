"""New models as eight-bit steps: every device has the aggregator's model to the bit."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edge_sdk.protocol import model_step
from edge_sdk.session.body_download import NewestModel

ROUNDS = 6
REPOSITORY = Path(__file__).parents[2]
PROCESS = Path(__file__).with_name("step_process.py")


def made(world, **run):
    return world(run={"rounds": ROUNDS, "downlink": "q8", "deadline": "600s", **run})


def finished(one):
    one.start_all()
    one.until(lambda: one.version >= one.run["rounds"])
    return one


@pytest.fixture
def received(monkeypatch):
    """Record every model that a device receives by version: how it came, and its bits."""
    found, keep, after_step = {}, NewestModel.keep, NewestModel.after_step
    by_step = set()

    def recorded_step(self, manifest, body):
        w = after_step(self, manifest, body)
        by_step.add((id(self), manifest.version))
        return w

    def recorded(self, version, w):
        how = "step" if (id(self), version) in by_step else "whole"
        found.setdefault(version, []).append((how, w.tobytes()))
        keep(self, version, w)

    monkeypatch.setattr(NewestModel, "after_step", recorded_step)
    monkeypatch.setattr(NewestModel, "keep", recorded)
    return found


def ways(found):
    return {how for how, _ in found}


def final_bits(one):
    return one.consensus().astype(np.float32).tobytes()


def test_devices_take_steps_and_have_the_aggregators_model_to_the_bit(world, received):
    one = finished(made(world))
    one.until(lambda: len(received.get(ROUNDS, ())) == one.devices)
    assert [ways(received[version]) for version in (0, 1, 2)] == [{"whole"}, {"step"}, {"step"}]
    assert all(len({bits for _, bits in found}) == 1 for found in received.values())
    assert {bits for _, bits in received[ROUNDS]} == {final_bits(one)}
    assert one.consensus().tobytes() == one.consensus().astype(np.float32).astype("f8").tobytes()


def test_one_round_is_close_to_the_exact_one(world):
    exact, stepped = (finished(made(world, downlink=enc, rounds=1)) for enc in ("f4", "q8"))
    learner = exact.clients[0].learner
    moved = np.linalg.norm(exact.consensus() - learner.spec.shared(learner.bundle.initial))
    assert 0 < np.linalg.norm(stepped.consensus() - exact.consensus()) < 0.02 * moved


def test_killed_devices_take_the_whole_model_and_change_no_bit(world, received):
    wanted = final_bits(finished(made(world)))
    received.clear()
    one, rng = made(world), random.Random(5)
    one.start_all()
    while one.version < ROUNDS:
        for _ in range(rng.randint(1, 12)):
            one.turn()
        victim = rng.randrange(one.devices)
        one.die(victim)
        one.turn()
        one.start(victim)
    assert final_bits(one) == wanted
    assert "whole" in set.union(*(ways(found) for version, found in received.items() if version))
    assert all(len({bits for _, bits in found}) == 1 for found in received.values())


def test_a_killed_aggregator_announces_the_same_step_again(world, received):
    wanted = final_bits(finished(made(world)))
    received.clear()
    one, rng = made(world), random.Random(2)
    one.start_all()
    while one.version < ROUNDS:
        for _ in range(rng.randint(2, 15)):
            one.turn()
        one.kill_daemon()
        one.start_daemon()
    assert final_bits(one) == wanted
    assert any("step" in ways(found) for found in received.values())


def in_a_process(folder, *words):
    """Run ``step_process.py``, and return its exit code and the last line that it printed."""
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    words = (sys.executable, str(PROCESS), str(folder), *words)
    ended = subprocess.run(words, env=environ, stdout=subprocess.PIPE, text=True, check=False)
    return ended.returncode, ended.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    code, bits = in_a_process(tmp_path_factory.mktemp("steps") / "world", "new", "never")
    assert code == 0
    return bits


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("moment", ["before-commit", "after-commit", "between-messages"])
def test_kill_9_around_the_commit_of_a_step_changes_no_bit(tmp_path, undisturbed, moment):
    """The process ends at the exact moment; the next one continues from its files."""
    code, _ = in_a_process(tmp_path, "new", moment)
    assert code == -signal.SIGKILL
    assert in_a_process(tmp_path, "again", "never") == (0, undisturbed)


def test_a_step_that_does_not_give_the_announced_model_is_replaced_by_the_whole_one(
    world, received, monkeypatch, caplog
):
    wanted = final_bits(finished(made(world)))
    received.clear()
    exact = model_step.stepped
    monkeypatch.setattr(
        "edge_sdk.protocol.model_step.stepped", lambda base, blob: exact(base, blob) + 1
    )
    one = finished(made(world))
    one.until(lambda: len(received.get(ROUNDS, ())) == one.devices)
    assert set.union(*map(ways, received.values())) == {"whole"}
    assert {bits for _, bits in received[ROUNDS]} == {wanted}
    assert "step refused" in caplog.text


@pytest.mark.parametrize(
    "changed",
    [
        {"method": "fedasync", "settings": {}, "quorum": 1},
        {"method": "rsa", "settings": {}},
        {"method": "pfl", "settings": {}},
        {"method": "dfl_sgd", "settings": {}},
    ],
)
def test_a_method_without_one_common_model_is_refused(world, capsys, changed):
    with pytest.raises(AssertionError):  # init refuses the configuration
        world(run={"downlink": "q8"} | changed)
    assert "run.downlink: 'q8' does not fit method" in capsys.readouterr().err


def test_the_agnostic_average_at_the_end_of_a_run_is_announced_whole(world, received):
    one = finished(made(world, method="afl", rounds=3))
    one.until(lambda: len(received.get(3, ())) == one.devices)
    assert ways(received[2]) == {"step"}
    assert ways(received[3]) == {"whole"}
