"""The projected traffic of a device: against real messages, and held to quotas."""

import json

import numpy as np
import pytest

from aggregator.commands import main as cli
from aggregator.config import bind
from aggregator.daemon import Daemon
from aggregator.operations.link_projection import CLASS_DAY, LinkProjection, projection_of
from edge_sdk.limits import CLASSES
from edge_sdk.protocol import codec, envelope, keys
from edge_sdk.protocol.messages import UpdateMessage
from firmware_sim.testing.loopback import LoopbackBroker
from tests.aggregator.conftest import ONLINE

CONTINUOUS = 'schedule = { rounds_per_day = "continuous" }'


def test_the_projection_is_the_size_of_the_real_messages(founded, still_clock):
    config, broker = founded(), LoopbackBroker()
    with Daemon(config, transport=broker.link("_agg"), clock=still_clock) as daemon:
        for _ in range(4):
            daemon.turn()
        found = projection_of(daemon._engine.run)
        retained = broker.retained()
    down = {t: p for t, p in retained.items() if t.endswith("/model") or "/part/" in t}
    assert len(down) == 2
    real = sum(len(topic) + len(payload) + 12 for topic, payload in down.items())
    assert real <= found.down <= real + 260  # the receipt, and numbers of more digits
    update = UpdateMessage(
        1, 1000, 1000, 10, 100, 1000, bytes(16), "delta", "f4", 10_000, {"loss": 0.123},
        blob=np.zeros(2, "<f4").tobytes(),
    )  # fmt: skip
    sealed = envelope.seal(
        codec.encode(update), kind="update", sender="meter-000001", recipient="_agg",
        fleet="north", signer=keys.from_seed(bytes(32)),
    )  # fmt: skip
    assert found.up == len(sealed) + len("gf/1/north/meter-000001/up/update") + 12


def test_the_limits_of_the_classes_are_those_that_are_warned_of():
    assert {CLASSES[name].daily_link_bytes for name in "BC"} == {CLASS_DAY}
    assert CLASSES["A"].daily_link_bytes is None
    assert not LinkProjection(40_000, 40_000, 12).warnings()
    assert "above 1 MB" in LinkProjection(40_000, 50_000, 12).warnings()[0]


def checked(path, capsys):
    code = cli.main(["check-config", str(path), "--json"])
    said = capsys.readouterr()
    return code, json.loads(said.out) if code == 0 else said.err


@pytest.mark.usefixtures("founded")
def test_check_config_prints_the_projection(workplace, tmp_path, capsys):
    schedule = 'schedule = { rounds_per_day = 8, windows = ["mon-fri 01:00-05:00"] }'
    path = workplace(replacing=[(CONTINUOUS, schedule)])
    keys.save_signing_key(tmp_path / "state" / "aggregator.key", ONLINE)
    code, said = checked(path, capsys)
    found = said["projection"]
    assert code == 0
    assert found["rounds_per_day"] == pytest.approx(40 / 7)
    a_round = found["up_per_round"] + found["down_per_round"]
    assert found["bytes_per_day"] == int(40 / 7 * a_round) + 30_000
    assert said["traffic"].startswith("5.71 rounds a day x ")


@pytest.mark.extension
@pytest.mark.parametrize(
    "chosen",
    [
        ("bafdp", "cells-mlp-24", True),
        ("bsfdp", "cells-mlp-24", True),
        ("bafdp", "cells-mlp-1", False),
        ("rsa", "cells-mlp-24", False),
    ],
)
def test_check_config_warns_of_bafdp_a_day_ahead(workplace, tmp_path, capsys, chosen):
    method, bundle, is_warned = chosen
    path = workplace(replacing=[('"fedavg"', f'"{method}"'), ('"toy"', f'"{bundle}"')])
    keys.save_signing_key(tmp_path / "state" / "aggregator.key", ONLINE)
    code, said = checked(path, capsys)
    assert code == 0, said
    assert any("raised the error by 46 to 49 %" in x for x in said.get("warnings", [])) is is_warned
    assert cli.main(["check-config", str(path)]) == 0
    text = capsys.readouterr().out
    assert (f"warning: run.method: {method} with forecasts of 24 steps" in text) is is_warned


def test_a_schedule_beyond_the_quota_is_refused_with_the_figures(workplace, tmp_path, capsys):
    path = workplace(replacing=[(CONTINUOUS, "schedule = { rounds_per_day = 1000 }")])
    path.write_text(path.read_text() + "\n[admission]\ndaily_bytes = 100_000\n")
    code, said = checked(path, capsys)
    assert code == 2
    assert "run.schedule.rounds_per_day: 1000 rounds a day x " in said
    assert "above 100 kB a day, which admission.daily_bytes allows" in said


def test_rounds_back_to_back_are_projected_as_rounds_until_the_quota(founded):
    found = projection_of(bind(founded()))
    assert (found.rounds, found.day, found.month) == (None, None, None)
    assert "rounds back to back" in found.text(64_000_000)
