"""What the budget says of a device: claims, data sheets, and a count that was lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_sdk.commands import main as cli
from edge_sdk.errors import ConfigError
from edge_sdk.extensions.inspection import budget
from edge_sdk.extensions.inspection.release_count import begin_counts
from edge_sdk.privacy.noise import epsilon_of
from edge_sdk.protocol import keys
from tests.edge_sdk.extensions.inspection.test_second_count import (
    MOST,
    bounded,
    hostile,
    lost,
    rounds,
)
from tests.edge_sdk.privacy.test_device import (
    INPUT,
    UPDATE,
    noisy_section,
    numpy_bundle,
    privacy,
    started,
)
from tests.edge_sdk.privacy.test_device import rounds as rounds_of

__all__ = ["bounded", "numpy_bundle"]


def test_the_budget_reports_a_claim_exceeded_by_earlier_releases(make):
    fleet = make("turn")
    fleet.device.start()
    fleet.device.observe()
    fleet.device.client.flush()
    rounds_of(fleet, [0])
    fleet.device.kill()
    for outside, holds in ((0, False), (1, True)):
        said = noisy_section(privacy(INPUT, **({"unclaimed_releases": outside} if outside else {})))
        config = replace(fleet.device.config, privacy=said)
        text = budget.budget(config)["text"]
        assert ("this does not hold for the updates already released" in text) is not holds
        assert ("after the first 1 updates" in text) is holds
        assert budget.datasheet(config)["claim holds for the releases so far"] is holds


def test_the_data_sheet_describes_the_active_mechanism(make):
    fleet = started(make, UPDATE, epsilon=50.0)
    rounds_of(fleet, [0])
    sheet = budget.datasheet(fleet.device.config)
    assert sheet["formal claim"] is True
    assert sheet["releases so far"] == 1
    assert sheet["epsilon so far"] == pytest.approx(epsilon_of(10.0, 1e-6), rel=1e-6)
    assert sheet["epsilon of one release"] == sheet["epsilon so far"]
    assert sheet["neighbouring inputs"] == "replace"
    assert sheet["measured numbers beside updates"] == "withheld"


@pytest.mark.parametrize("gone", ["both", "count", "copied"])
def test_without_its_count_a_used_key_releases_nothing_until_the_owner_accepts(
    bounded, gone, capsys, caplog, monkeypatch
):
    fleet = bounded()
    hostile(fleet)
    assert rounds(fleet, 1) == 1
    config = fleet.device.config
    if gone == "both":
        lost(fleet)
    else:
        fleet.device.kill()
    config.counted_in.unlink()
    if gone == "copied":  # from another device of the owner, with a smaller count
        begin_counts(config.counted_in, keys.from_seed(b"o" * 32), {})
    caplog.clear()
    assert rounds(fleet, 2) == 1
    assert caplog.text.count("release count missing") == 1
    fleet.device.kill()
    found = budget.budget(config)
    assert (found["spent"], found["count lost"]) == (True, True)
    assert "NO UPDATE LEAVES" in found["text"]
    assert "--accept-loss" in found["text"]
    monkeypatch.setattr(budget.Config, "load", lambda _path: config)
    assert cli.main(["budget", "meter.toml", "--accept-loss"]) == 0
    begins = 1 if gone != "both" else 0
    assert f"begins at {begins}" in capsys.readouterr().out
    assert rounds(fleet, MOST) == 1 + MOST - begins
    fleet.device.kill()
    with pytest.raises(ConfigError, match="nothing is lost"):
        budget._accept_loss(config, config)
