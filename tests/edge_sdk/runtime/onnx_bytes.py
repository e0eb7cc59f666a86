"""Write ONNX files by hand, field by field: what no exporter of ours would write."""

from __future__ import annotations

import numpy as np

FLOAT, INT64 = 1, 7
_KINDS = {np.dtype(np.float32): FLOAT, np.dtype(np.int64): INT64}


def varint(value):
    """Return a number as protobuf writes it, negative ones as 64-bit two's complement."""
    value, out = value % 2**64, bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number, value):
    """Return one field: a number, text, or bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    raw = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def node(kind, inputs, outputs, *attributes, domain=""):
    """Return a NodeProto."""
    parts = [field(1, name) for name in inputs] + [field(2, name) for name in outputs]
    parts += [field(4, kind)] + [field(5, one) for one in attributes]
    return b"".join(parts) + (field(7, domain) if domain else b"")


def whole(name, value):
    """Return an attribute that holds a whole number."""
    return field(1, name) + field(3, value) + field(20, 2)


def nested(name, graph):
    """Return an attribute that holds a graph."""
    return field(1, name) + field(6, graph) + field(20, 5)


def constant(name, values):
    """Return a TensorProto."""
    sizes = b"".join(field(1, size) for size in values.shape)
    kind = field(2, _KINDS[values.dtype])
    return sizes + kind + field(8, name) + field(9, values.tobytes())


def ints(name, *values):
    """Return a constant of whole numbers."""
    return constant(name, np.array(values, np.int64))


def feed(name, *sizes, kind=FLOAT):
    """Return a ValueInfoProto; a size that is text is open."""
    dims = [field(1, field(1 if isinstance(s, int) else 2, s)) for s in sizes]
    return field(1, name) + field(2, field(1, field(1, kind) + field(2, b"".join(dims))))


def graph(nodes, feeds, results, constants=()):
    """Return a GraphProto."""
    parts = [field(1, one) for one in nodes] + [field(2, "g")]
    parts += [field(5, one) for one in constants]
    return b"".join(
        [*parts, *(field(11, one) for one in feeds), *(field(12, one) for one in results)]
    )


def model(*graphs, opset=17, more=b""):
    """Return a ModelProto."""
    said = field(1, 8) + b"".join(field(7, one) for one in graphs)
    return said + field(8, field(1, "") + field(2, opset)) + more


def looped(kind="Loop"):
    """Return a model whose one operator runs another graph 2^62 times."""
    body = graph(
        [node("Identity", ["on"], ["still"]), node("Identity", ["v"], ["after"])],
        [feed("i", kind=INT64), feed("on", kind=9), feed("v", 4)],
        [feed("still", kind=9), feed("after", 4)],
    )
    call = node(kind, ["count", "", "x"], ["out"], nested("body", body))
    return model(graph([call], [feed("x", 4)], [feed("out", 4)], [ints("count", 2**62)]))
