"""Operator by operator, numpy against onnxruntime: also what no shipped graph happens to use."""

from __future__ import annotations

import numpy as np
import pytest

from edge_sdk.extensions.numpy_engine.numpy_engine import NumpyGraph
from edge_sdk.extensions.numpy_engine.operators import OPERATORS
from edge_sdk.runtime import GraphError

onnx = pytest.importorskip("onnx", reason="single operators are written with it (extra: train)")
ort = pytest.importorskip("edge_sdk.runtime.ort_engine")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

pytestmark = pytest.mark.torch
DRAW = np.random.default_rng(8)
FAR = 2**62


def f(*shape):
    return (3 * DRAW.standard_normal(shape)).astype(np.float32)


def ints(*values):
    return np.array(values, np.int64)


def written(kind, inputs, results=1, *, as_feeds, cast=None, opset=17, **attributes):
    """Write one operator; float32 arrays are feeds or constants, everything else is constant."""
    names = [f"in{i}" if array is not None else "" for i, array in enumerate(inputs)]
    is_feed = [as_feeds and a is not None and a.dtype == np.float32 for a in inputs]
    outs = [f"out{i}" for i in range(results)]
    nodes = [helper.make_node(kind, names, outs, **attributes)]
    ends = outs
    if cast:
        ends = [f"{name}f" for name in outs]
        nodes += [
            helper.make_node("Cast", [a], [b], to=TensorProto.FLOAT)
            for a, b in zip(outs, ends, strict=True)
        ]
    feeds = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * array.ndim)
        for name, array, feed in zip(names, inputs, is_feed, strict=True)
        if feed
    ]
    constants = [
        numpy_helper.from_array(array, name)
        for name, array, feed in zip(names, inputs, is_feed, strict=True)
        if array is not None and not feed
    ]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ends]
    graph = helper.make_graph(nodes, "one", feeds, results, constants)
    sets = [helper.make_opsetid("", opset)]
    data = helper.make_model(graph, opset_imports=sets, ir_version=8).SerializeToString()
    values = {n: a for n, a, feed in zip(names, inputs, is_feed, strict=True) if feed}
    return data, values


CASES = [
    *((k, [f(4, 3), f(3)], {}) for k in ("Add", "Sub", "Mul", "Div", "Max", "Min")),
    ("Max", [f(2, 3), f(2, 1), f(3)], {}),
    ("Pow", [np.abs(f(5)) + 1, np.array(1.5, np.float32)], {}),
    *((k, [f(4, 3)], {}) for k in ("Neg", "Abs", "Sign", "Exp", "Sin", "Cos", "Floor", "Tanh")),
    *((k, [f(4, 3)], {}) for k in ("Relu", "Sigmoid", "Erf")),
    *((k, [np.abs(f(4, 3)) + 0.1], {}) for k in ("Sqrt", "Log", "Reciprocal")),
    ("Sigmoid", [np.array([-200, -80, -20, 0, 20, 200], np.float32)], {}),
    ("Identity", [f(2, 2)], {}),
    ("Where", [np.array([[True], [False]]), f(2, 3), f(3)], {}),
    ("Reshape", [f(2, 3, 4), ints(0, -1)], {}),
    ("Reshape", [f(2, 3, 4), ints(4, 6)], {}),
    ("Expand", [f(3, 1), ints(2, 1, 4)], {}),
    ("Transpose", [f(2, 3, 4)], {"perm": [2, 0, 1]}),
    ("Transpose", [f(2, 3)], {}),
    ("Unsqueeze", [f(2, 3), ints(0, 3)], {}),
    ("Unsqueeze", [f(2, 3), ints(-1)], {}),
    ("Squeeze", [f(1, 2, 1), ints(0)], {}),
    ("Squeeze", [f(1, 2, 1)], {}),
    ("Concat", [f(2, 3), f(2, 1)], {"axis": -1}),
    ("Slice", [f(5, 6), ints(1, -4), ints(FAR, -1), ints(0, 1)], {}),
    ("Slice", [f(5, 6), ints(-1), ints(-FAR), ints(0), ints(-1)], {}),
    ("Slice", [f(5, 6), ints(4), ints(0), ints(-1), ints(-2)], {}),
    ("Slice", [f(5, 6), ints(0, 1), ints(3, 9)], {}),
    ("Pad", [f(2, 3), ints(1, 0, 0, 2)], {}),
    ("Pad", [f(2, 3), ints(0, 1, 1, 0), np.array(-3, np.float32)], {}),
    ("Gather", [f(4, 3), np.array(-1, np.int64)], {"axis": 1}),
    ("Gather", [f(4, 3), ints(2, 0, -1)], {}),
    ("ReduceSum", [f(3, 4, 5), ints(0, -1)], {"keepdims": 0}),
    ("ReduceSum", [f(3, 4)], {"keepdims": 0}),
    ("ReduceSum", [f(3, 4), ints()], {"noop_with_empty_axes": 1}),
    *((k, [f(3, 4, 5)], {"axes": [1, 2], "keepdims": 0}) for k in ("ReduceMean", "ReduceMax")),
    ("ReduceMin", [f(3, 4)], {}),
    ("MatMul", [f(5, 2, 3), f(5, 3, 4)], {}),
    ("MatMul", [f(2, 3), f(3)], {}),
    ("Gemm", [f(3, 2), f(4, 3), f(4)], {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
    ("Gemm", [f(2, 3), f(3, 4), f(2, 1)], {}),
    ("Gemm", [f(2, 3), f(3, 4)], {}),
]
SEVERAL = [
    ("Split", [f(6, 2)], 3, {}),
    ("Split", [f(2, 6), ints(1, 5)], 2, {"axis": 1}),
    ("LSTM", [f(4, 3, 2), f(1, 20, 2), f(1, 20, 5), f(1, 40)], 3, {"hidden_size": 5}),
    ("LSTM", [f(4, 3, 2), f(1, 20, 2), f(1, 20, 5)], 3, {"hidden_size": 5}),
    (
        "LSTM",
        [f(4, 3, 2), f(1, 20, 2), f(1, 20, 5), f(1, 40), None, f(1, 3, 5), f(1, 3, 5)],
        3,
        {"hidden_size": 5},
    ),
    ("GRU", [f(4, 3, 2), f(1, 15, 2), f(1, 15, 5), f(1, 30)], 2, {"hidden_size": 5}),
    (
        "GRU",
        [f(4, 3, 2), f(1, 15, 2), f(1, 15, 5), f(1, 30), None, f(1, 3, 5)],
        2,
        {"hidden_size": 5, "linear_before_reset": 1},
    ),
]
TO_FLOAT = [
    *((k, [np.round(f(4, 3)), np.round(f(3))], {}) for k in ("Equal", "Greater", "Less")),
    *((k, [np.round(f(4, 3)), np.round(f(3))], {}) for k in ("GreaterOrEqual", "LessOrEqual")),
    *((k, [f(4) > 0, f(4) > 0], {}) for k in ("And", "Or")),
    ("Not", [f(4) > 0], {}),
    ("Shape", [f(2, 3, 4)], {}),
    ("Shape", [f(2, 3, 4)], {"start": 1, "end": -1}),
    ("ArgMax", [np.round(f(5, 6))], {"axis": 1, "keepdims": 0}),
    ("Div", [ints(7, -7, 9), ints(2, 2, -3)], {}),
    ("Cast", [np.array([0.0, -1.7, 2.9], np.float32)], {"to": TensorProto.INT64}),
    ("Cast", [np.array([0.0, -1.7, 2.9], np.float32)], {"to": TensorProto.BOOL}),
]
ALL = [
    *((kind, inputs, 1, None, more) for kind, inputs, more in CASES),
    *((kind, inputs, results, None, more) for kind, inputs, results, more in SEVERAL),
    *((kind, inputs, 1, True, more) for kind, inputs, more in TO_FLOAT),
]


@pytest.mark.parametrize("as_feeds", [True, False], ids=["fed", "known"])
@pytest.mark.parametrize(
    "case",
    ALL,
    ids=[f"{i}-{c[0]}" for i, c in enumerate(ALL)],
)
def test_every_operator_equals_that_of_onnxruntime(case, as_feeds):
    kind, inputs, results, cast, more = case
    data, feeds = written(kind, inputs, results, as_feeds=as_feeds, cast=cast, **more)
    wanted, got = ort.OrtGraph(data)(**feeds), NumpyGraph(data)(**feeds)
    for one, other in zip(wanted, got, strict=True):
        assert one.shape == other.shape
        assert np.allclose(one, other, rtol=1e-5, atol=1e-6)


def test_every_operator_of_the_table_is_compared():
    assert OPERATORS.keys() == {kind for kind, *_ in ALL}


@pytest.mark.parametrize(
    ("kind", "inputs", "results", "more", "why"),
    [
        ("Softplus", [f(3)], 1, {}, "operator Softplus is not"),
        ("Pad", [f(2), ints(1, 1)], 1, {"mode": "reflect"}, "mode 'reflect'"),
        ("ArgMax", [f(2)], 1, {"select_last_index": 1}, "'select_last_index' is not supported"),
        ("Cast", [f(2)], 1, {"to": TensorProto.FLOAT16}, "element type 10"),
        (
            "LSTM",
            [f(4, 3, 2), f(2, 20, 2), f(2, 20, 5)],
            1,
            {"hidden_size": 5, "direction": "bidirectional"},
            "runs forward",
        ),
        ("GRU", [f(4, 3, 2), f(1, 15, 2), f(1, 15, 5)], 1, {"hidden_size": 5, "clip": 3.0}, "clip"),
    ],
)
def test_unsupported_attributes_are_refused_on_loading(kind, inputs, results, more, why):
    data, _ = written(kind, inputs, results, as_feeds=True, **more)
    with pytest.raises(GraphError, match=why):
        NumpyGraph(data)


def test_another_operator_set_is_refused():
    data, _ = written("Neg", [f(2)], as_feeds=True, opset=18)
    with pytest.raises(GraphError, match="operator set 18; 13 to 17"):
        NumpyGraph(data)


@pytest.mark.parametrize("kind", ["float32", "int64", "int32", "bool", "float64"])
@pytest.mark.parametrize("raw", [True, False])
def test_constants_are_read_in_both_encodings(kind, raw):
    values = np.array([[0, 1, 1], [1, 0, 1]], kind)
    types = {"float32": 1, "int64": 7, "int32": 6, "bool": 9, "float64": 11}
    content = values.tobytes() if raw else values.ravel().tolist()
    tensor = helper.make_tensor("c", types[kind], values.shape, content, raw=raw)
    node = helper.make_node("Cast", ["c"], ["y"], to=TensorProto.FLOAT)
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "one", [], [out], [tensor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (got,) = NumpyGraph(model.SerializeToString())()
    assert np.array_equal(got, values.astype(np.float32))
