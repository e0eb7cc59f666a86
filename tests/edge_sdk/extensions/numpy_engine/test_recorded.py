"""Numpy ends a hundred steps where onnxruntime ended: also on machines that have no onnxruntime."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from edge_sdk.extensions.numpy_engine.numpy_engine import NumpyGraph

_spec = importlib.util.spec_from_file_location("record", Path(__file__).with_name("record.py"))
record = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(record)
RECORDED = json.loads(record.FILE.read_text())


def test_every_shipped_graph_is_recorded():
    assert RECORDED.keys() == {f"{name}/{graph}" for name, graph in record.cases()}


@pytest.mark.parametrize(("name", "graph"), record.cases())
def test_training_ends_at_the_recorded_result(name, graph):
    wanted = RECORDED[f"{name}/{graph}"]
    got = record.trained(name, graph, NumpyGraph)
    assert np.abs(np.array(got["p"]) - wanted["p"]).max() <= 1e-5
    assert abs(got["loss"] - wanted["loss"]) <= 1e-5
