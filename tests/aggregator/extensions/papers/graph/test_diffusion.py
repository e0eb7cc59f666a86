"""The protocol's promises, on the model that needs no engine."""

from __future__ import annotations

import numpy as np
import pytest

from aggregator.extensions.papers.graph import Diffusion, GraphModel
from aggregator.extensions.papers.graph.stations import path

DRAW = np.random.Generator(np.random.Philox(4))
ALL = np.ones(4, np.bool_)


@pytest.fixture
def model() -> GraphModel:
    return Diffusion(path(4), features=3, order=3)


def test_pulls_back_what_finite_differences_find(model):
    h, gz = DRAW.normal(size=(2, 2, 4, 3, 5))
    p = model.init(1)
    gh, gp = model.pullback(p, h, ALL, gz)
    for direction in np.eye(model.spec.size):
        ahead, behind = (model.forward(p + e * direction, h, ALL) for e in (1e-6, -1e-6))
        assert gp @ direction == pytest.approx(((ahead - behind) * gz).sum() / 2e-6, rel=1e-6)
    way = DRAW.normal(size=h.shape)
    ahead, behind = (model.forward(p, h + e * way, ALL) for e in (1e-6, -1e-6))
    assert (gh * way).sum() == pytest.approx(((ahead - behind) * gz).sum() / 2e-6, rel=1e-6)


def test_an_absent_slot_is_never_read(model):
    h, gz = DRAW.normal(size=(2, 2, 4, 3, 5))
    present, p = np.array([True, True, False, True]), model.init(1)
    before = model.forward(p, h, present), *model.pullback(p, h, present, gz)
    h[:, 2] = gz[:, 2] = np.nan
    after = model.forward(p, h, present), *model.pullback(p, h, present, gz)
    for one, other in zip(before, after, strict=True):
        assert np.array_equal(one, other)
    assert not before[0][:, 2].any()
    assert not before[1][:, 2].any()


def test_the_graph_of_those_present_is_a_graph_of_its_own(model):
    h = DRAW.normal(size=(2, 4, 3, 5))
    three, p = np.array([True, True, True, False]), model.init(1)
    small = Diffusion(path(3), features=3, order=3)
    alone = small.forward(p, h[:, :3], np.ones(3, np.bool_))
    assert np.allclose(model.forward(p, h, three)[:, :3], alone, rtol=0, atol=1e-12)
