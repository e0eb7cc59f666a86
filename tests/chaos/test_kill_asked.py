"""kill -9 where every device is asked by itself: no task is lost, none is answered twice.

Where everybody is waited for, the model is the undisturbed one to the bit. Where nobody is, kills
change who is counted when; the journal then still folds to exactly what was announced.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from firmware_sim.fleet.processes import ProcessGroup
from firmware_sim.scenario import RunSettings, Scenario
from tests.chaos.storm import Storm, federation, personal, read, settled

pytestmark = [pytest.mark.chaos, pytest.mark.broker]

ROUNDS = 8
SETTINGS = {"steps": 2, "rate": 0.003}
LEARNING = {
    "bsfdp": RunSettings("bsfdp", rounds=ROUNDS, settings=SETTINGS | {"regulariser": "off"}),
    "fedbuff": RunSettings("fedbuff", rounds=ROUNDS, settings=SETTINGS, quorum=4),
    "fesem": RunSettings(
        "fesem", rounds=ROUNDS, settings=SETTINGS | {"centres": 2, "first_steps": 8}
    ),
    "analytic": RunSettings("analytic", rounds=ROUNDS),
    "half": RunSettings("fedbuff", rounds=4 * ROUNDS, settings=SETTINGS, quorum=2),
    "fedasync": RunSettings("fedasync", rounds=8 * ROUNDS, settings=SETTINGS, quorum=1),
    "bafdp": RunSettings(
        "bafdp", rounds=20 * ROUNDS, settings={"staleness_bound": 3, "overdue": "wait"}, quorum=2
    ),
}
CELLS = {"bafdp"}  # whose bundle has the gradient that flattens the loss


def scenario(name: str) -> Scenario:
    made = Scenario(f"kill -9 of {name}", devices=4, run=LEARNING[name])
    if name in CELLS:
        return replace(made, samples="cells", bundle="cells-mlp-1")
    bundle = "load-analytic" if name == "analytic" else "load-mlp"
    return replace(made, samples="homes", bundle=bundle, until="2018-03-01")


def run(folder, name, kind="embedded", seed=None):
    """Let a fleet learn, in calm or in a storm; return what the stores say, and the kills."""
    storm = None
    with ProcessGroup(folder / "logs") as family:
        made, url = federation(folder, family, kind, scenario(name))
        if seed is not None:
            storm = Storm(made, url, kind=kind, folder=folder, seed=seed, most=8)
        for _ in made.watch(800, serve=storm or (lambda: None)):
            pass
        settled(made)
        made.stop()
        audit, state = read(made)
        owed = personal(made)
    assert len(owed) == 4
    return audit, state, storm.kills if storm else {}


@pytest.mark.parametrize(
    "name",
    [
        "fedbuff",
        *(pytest.param(name, marks=pytest.mark.soak) for name in ("bsfdp", "fesem", "analytic")),
    ],
)
def test_synchronous_methods_end_with_the_same_bits_after_kills(tmp_path, name):
    _, calm, _ = run(tmp_path / "calm", name)
    audit, state, kills = run(tmp_path / "storm", name, seed=7)
    assert audit.moved == ROUNDS
    assert set(audit.updates.values()) == {ROUNDS}
    assert state.w.tobytes() == calm.w.tobytes(), json.dumps(kills)


@pytest.mark.parametrize(
    ("name", "quorum", "kind"),
    [
        pytest.param("half", 2, "mosquitto", marks=pytest.mark.soak),
        pytest.param("fedasync", 1, "embedded", marks=pytest.mark.soak),
        ("bafdp", 2, "embedded"),
    ],
)
def test_asynchronous_methods_replay_to_the_announced_model_after_kills(
    tmp_path, name, quorum, kind
):
    audit, state, kills = run(tmp_path, name, kind, seed=11)
    assert audit.moved == state.version == LEARNING[name].rounds
    assert sum(audit.updates.values()) >= quorum * audit.moved
    assert len(audit.updates) == 4, json.dumps(kills)
