"""A graph that loops, holds another graph, or is too large is refused before an engine sees it."""

from __future__ import annotations

import time

import numpy as np
import pytest

from edge_sdk.bundle import shipped_folder
from edge_sdk.runtime import GraphError, inspect_graph, load_graph
from edge_sdk.runtime.onnx_reader import read_onnx
from edge_sdk.runtime.shape_inference import MOST_ELEMENTS, MOST_TOTAL, infer_cost
from tests.edge_sdk.runtime.onnx_bytes import (
    constant,
    feed,
    field,
    graph,
    ints,
    looped,
    model,
    node,
    whole,
)

LONG = 2**62
X = feed("x", 4)
OUT = feed("out", 4)


def one(*nodes, constants=(), feeds=(X,), results=(OUT,)):
    return model(graph(nodes, feeds, results, constants))


def doubled(times):
    """Return a graph that joins an array with itself, again and again."""
    nodes, name = [], "x"
    for i in range(times):
        nodes.append(node("Concat", [name, name], [f"x{i}"], whole("axis", 0)))
        name = f"x{i}"
    return one(*nodes, results=[feed(name, "n")])


def squared(times, size=2048):
    """Return a graph of few arrays and much arithmetic."""
    nodes, name = [node("Expand", ["w", "to"], ["w0"])], "w0"
    for i in range(1, times):
        nodes.append(node("MatMul", [name, "w0"], [f"w{i}"]))
        name = f"w{i}"
    constants = [constant("w", np.zeros((size, 1), np.float32)), ints("to", size, size)]
    return one(*nodes, constants=constants, results=[feed(name, size, size)])


def with_sizes(kind, *sizes):
    return one(node(kind, ["x", "to"], ["out"]), constants=[ints("to", *sizes)])


ONE = constant("one", np.ones(1, np.float32))
HOSTILE = {
    "a loop": (looped(), "graphs are not supported"),
    "a scan": (looped("Scan"), "graphs are not supported"),
    "a branch": (looped("If"), "graphs are not supported"),
    "a loop without a body": (
        one(node("Loop", ["x"], ["out"])),
        "operator Loop is not allowed in a bundle",
    ),
    "a range": (
        one(node("Range", ["a", "b", "c"], ["out"]), constants=[ints(n, 2**62) for n in "abc"]),
        "operator Range is not allowed in a bundle",
    ),
    "a filled shape": (
        one(node("ConstantOfShape", ["to"], ["out"]), constants=[ints("to", LONG)]),
        "operator ConstantOfShape is not allowed in a bundle",
    ),
    "a tile": (with_sizes("Tile", LONG), "operator Tile is not allowed in a bundle"),
    "an expansion": (with_sizes("Expand", 2**38, 4), "Expand: 1099511627776 elements in one"),
    "an expansion beyond a machine": (with_sizes("Expand", LONG, LONG, 4), "Expand"),
    "an expanded constant": (
        one(node("Expand", ["one", "to"], ["out"]), constants=[ONE, ints("to", 2**36)]),
        "Expand: 68719476736 elements in one array",
    ),
    "a pad": (with_sizes("Pad", 2**40, 2**40), "Pad: 2199023255556 elements in one array"),
    "a pad below nothing": (with_sizes("Pad", -1, 0), "Pad: .*shape of its result"),
    "a reshape": (with_sizes("Reshape", 2**40, -1), "Reshape: .*shape of its result"),
    "doubling": (doubled(40), "Concat: .* elements in one array"),
    "many arrays": (
        one(
            *(node("Expand", ["x", "to"], [f"o{i}"]) for i in range(40)),
            constants=[ints("to", 2**20, 4)],
            results=[feed("o0", "n", 4)],
        ),
        "elements in all arrays",
    ),
    "arithmetic": (squared(8), "MatMul: .* multiplications"),
    "a size that is measured": (
        one(node("Expand", ["x", "y"], ["out"]), feeds=[X, feed("y", 1)]),
        "sizes and axes must be constant",
    ),
    "a large feed": (one(feeds=[feed("x", 2**40)]), "elements in one array"),
    "a large gather": (
        one(
            node("Expand", ["zero", "to"], ["ids"]),
            node("Gather", ["x", "ids"], ["out"]),
            constants=[ints("zero", 0), ints("to", 2**36)],
        ),
        "Expand: 68719476736 elements",
    ),
    "two graphs": (
        model(graph([node("Relu", ["x"], ["out"])], [X], [OUT]), graph([], [X], [X])),
        "several graphs",
    ),
    "a function": (
        model(graph([node("Relu", ["x"], ["out"])], [X], [OUT]), more=field(25, b"")),
        "functions",
    ),
    "another set": (one(node("Relu", ["x"], ["out"], domain="com.microsoft")), "com.microsoft"),
    "a constant twice": (
        one(node("Add", ["x", "one"], ["out"]), constants=[ONE, ONE]),
        "'one' occurs twice in the file",
    ),
    "an attribute twice": (
        one(node("Concat", ["x", "x"], ["out"], whole("axis", 0), whole("axis", 0))),
        "'axis' occurs twice",
    ),
    "nothing": (one(), "no operator produces the output 'out'"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_graph_is_refused_before_an_engine_sees_it(name, monkeypatch):
    engines = {"onnxruntime": lambda *_, **__: pytest.fail("run")}
    monkeypatch.setattr("edge_sdk.runtime.ENGINES", engines)
    data, why = HOSTILE[name]
    began = time.process_time()
    with pytest.raises(GraphError, match=why):
        load_graph(data)
    assert time.process_time() - began < 5.0, "refused, but only after work"


def test_hostile_graphs_stay_within_the_cost_bounds():
    """The largest graph that passes is many times the largest that ships."""
    costs = [
        infer_cost(read_onnx(path.read_bytes()))
        for path in sorted(shipped_folder().glob("*/*.onnx"))
    ]
    assert 40 * max(cost.largest for cost in costs) < MOST_ELEMENTS
    assert 10 * max(cost.total for cost in costs) < MOST_TOTAL
    assert infer_cost(read_onnx(doubled(20))).largest == 4 * 2**20


def test_feeds_and_results_equal_those_of_onnxruntime():
    data = (shipped_folder() / "load-mlp" / "gradient.onnx").read_bytes()
    assert inspect_graph(data) == (("p", "x", "y"), ("loss", "g"))


@pytest.mark.torch
@pytest.mark.parametrize("name", ["a loop", "an expansion", "two graphs"])
def test_decoded_graphs_equal_those_of_onnx(name):
    """Otherwise the attacks above would be refused as nonsense, not as attacks."""
    onnx = pytest.importorskip("onnx", reason="reads what was written by hand (extra: train)")
    loaded = onnx.ModelProto.FromString(HOSTILE[name][0])
    kinds = [node_.op_type for node_ in loaded.graph.node]
    assert kinds == {"a loop": ["Loop"], "an expansion": ["Expand"], "two graphs": ["Relu"]}[name]
    if name == "a loop":
        onnx.checker.check_model(loaded)
