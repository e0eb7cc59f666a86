"""What a device gives to a sum of scores, and how a former configuration is refused."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from edge_sdk.app.settings import SettingsError, from_table
from edge_sdk.config import Config
from edge_sdk.extensions.scores.score_cells import CELLS, NAME, labels, score_of

pytestmark = pytest.mark.extension
DAY = 86_400_000


def device(ratio, *, is_known=True):
    def scored(_store, _runtime, days, *, before):
        assert (days, before) == (7, 20_000)
        return ratio

    config = SimpleNamespace(offered=lambda key: scored if is_known and key == "scored" else None)
    return SimpleNamespace(config=config, store=None, active=SimpleNamespace(learner=None))


@pytest.mark.parametrize(("ratio", "cell"), [(None, 0), (0.3, 1), (0.95, 4), (9.0, 7)])
def test_a_device_gives_one_to_the_cell_of_its_score(ratio, cell):
    found = score_of(device(ratio), NAME, 20_000 * DAY)
    assert found.tolist() == np.eye(CELLS)[cell].tolist()
    assert len(labels()) == CELLS


def test_a_device_that_knows_no_score_is_in_the_first_cell_and_gives_none_for_another_histogram():
    assert score_of(device(0.3, is_known=False), NAME, 20_000 * DAY)[0] == 1.0
    assert score_of(device(0.3), "another", 20_000 * DAY) is None


def test_the_former_section_is_refused_with_what_took_its_place():
    with pytest.raises(
        SettingsError, match="scores: removed: answers with a device's own noise are gone"
    ):
        from_table(Config, {"scores": {"report": True}}, "meter.toml")
