"""CNFGNN's messages: as far as layers reach, and no further."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import numpy as np

from aggregator.extensions.papers.graph.nets.baselines import GraphNet
from aggregator.extensions.papers.graph.nets.torch_adapter import TorchGraphModel
from aggregator.extensions.papers.graph.stations import path

pytestmark = pytest.mark.torch


def test_messages_go_along_edges_only():
    model = TorchGraphModel(lambda: GraphNet(3, 2), path(5), order=2, dtype="float64")
    draw, there = np.random.Generator(np.random.Philox(8)), np.ones(5, np.bool_)
    h, p = draw.normal(size=(2, 5, 3, 1)), model.init(1)
    moved = h.copy()
    moved[:, 4] += 1.0
    changed = (model.forward(p, moved, there) != model.forward(p, h, there)).any((0, 2, 3))
    assert changed.tolist() == [False, False, True, True, True]  # two layers: two edges far


def test_an_isolated_node_hears_nothing():
    adjacent = np.zeros((3, 3))
    adjacent[0, 1] = adjacent[1, 0] = 1.0
    model = TorchGraphModel(lambda: GraphNet(3, 1), adjacent, order=2, dtype="float64")
    h, p = np.ones((1, 3, 3, 1)), model.init(1)
    z = model.forward(p, h, np.ones(3, np.bool_))
    layers = {x.name: p[x.offset : x.offset + x.size].reshape(x.shape) for x in model.spec.layers}
    inner = layers["layers.0.gather.weight"][:, :3].sum(1) + layers["layers.0.gather.bias"]
    wanted = layers["layers.0.out.weight"] @ np.maximum(inner, 0) + layers["layers.0.out.bias"]
    np.testing.assert_allclose(z[0, 2, :, 0], wanted, rtol=0, atol=1e-12)
