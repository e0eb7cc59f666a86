"""Every number of every message at its ends and beyond them: refused as MALFORMED, or harmless.

The walk finds the fields by itself, so a field that is added later without a bound fails here.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgpack
import pytest

from edge_sdk.app.schema import Between
from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol import codec, messages

VECTORS = Path(__file__).parents[1] / "vectors"
INDEX = json.loads((VECTORS / "index.json").read_text())
CLASSES = (*messages.KINDS.values(), messages.ContentBody)
WILD = (-1, 2**63 - 1, 2**63, 2**64 - 1, 1e300, math.inf, -math.inf, math.nan)
LENGTHS = {
    ("peer", "off"),
    ("peer", "num"),
    ("weather", "num"),
    ("forecast", "num"),
}
JUDGED_LATER = {("update", "vals")}  # an answer is due that is final: BAD_SCALAR


def numbers(kind: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], type, Any]]:
    """Yield the place, type and range of every number in a field's type."""
    rules: tuple[Any, ...] = ()
    if hasattr(kind, "__metadata__"):
        rules, kind = kind.__metadata__, get_args(kind)[0]
    origin, args = get_origin(kind), get_args(kind)
    if kind in (int, float):
        yield at, kind, next((rule for rule in rules if isinstance(rule, Between)), None)
    elif origin is tuple:
        inner = [arg for arg in args if arg is not Ellipsis]
        for i, arg in enumerate(inner):
            yield from numbers(arg, (*at, str(i)))
    elif origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        yield from numbers(args[1], (*at, "loss"))
    else:
        for arg in args:
            if arg is not type(None):
                yield from numbers(arg, at)


def fields_of(cls: type) -> Iterator[tuple[tuple[str, ...], type, Any]]:
    hints = get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        yield from numbers(hints[field.name], (field.name,))


EVERY = [
    pytest.param(cls, *found, id=f"{cls.kind}.{'.'.join(found[0])}")
    for cls in CLASSES
    for found in fields_of(cls)
]


def sample(cls: type) -> dict[str, Any]:
    """Return the header and blob of a sound message of a kind, as msgpack holds it."""
    if cls is messages.ContentBody:
        body = (VECTORS / "body-content.bin").read_bytes()
    else:
        name = {"task": "task-neighbours", "signal": "signal", "model": "model"}.get(cls.kind)
        name = name or next(
            n for n, c in INDEX["payloads"].items() if c["kind"] == cls.kind and not c["refused"]
        )
        body = msgpack.unpackb((VECTORS / f"{name}.bin").read_bytes())[3]
    header, blob = msgpack.unpackb(body)
    return {"header": header, "blob": blob}


def put(header: dict[str, Any], at: tuple[str, ...], value: object) -> None:
    """Put a value where a field, or a number inside it, is."""
    key, *rest = at
    key = key.removesuffix("_")
    if not rest:
        header[key] = value
    elif rest == ["loss"]:
        header[key] = {"loss": value}
    elif key == "wire":
        header[key] = [value if str(i) == rest[0] else 1 for i in range(2)]
    elif len(rest) == 2:
        header[key] = [[value if str(i) == rest[1] else 1 for i in range(2)]]
    else:
        header[key] = [value] * max(1, len(header.get(key) or ()))


def says(cls: type, at: tuple[str, ...], value: object) -> str:
    """Return "" if a message with this value there is taken, else the name of the reason."""
    made = sample(cls)
    put(made["header"], at, value)
    try:
        codec.decode(cls, msgpack.packb([made["header"], made["blob"]]))
    except Refused as refused:
        return refused.reason.name
    return ""


@pytest.mark.parametrize(("cls", "at", "kind", "rule"), EVERY)
def test_every_number_is_refused_outside_its_bounds(cls, at, kind, rule):
    if (cls.kind, at[0]) in JUDGED_LATER:
        assert says(cls, at, math.nan) == ""
        return
    assert rule is not None, "a number without a bound"
    assert math.isfinite(rule.lowest)
    assert math.isfinite(rule.highest)
    beyond = rule.highest + 1 if kind is int else math.nextafter(rule.highest, math.inf)
    for value in (*WILD, beyond):
        is_within = isinstance(value, (int, kind)) and rule.admits(value)
        if not is_within:
            assert says(cls, at, value) == Reason.MALFORMED.name, (at, value)
    if kind is int:
        assert rule.highest <= 2**53 - 1, "a double does not hold it exactly"
        assert rule.lowest in (0, 1)


@pytest.mark.parametrize(("cls", "at", "kind", "rule"), EVERY)
def test_the_largest_number_of_every_field_is_accepted(cls, at, kind, rule):
    """So that the walk above is known to reach the field, and not to fail beside it."""
    if rule is None or (cls.kind, at[0]) in LENGTHS:
        return
    related = {"size", "chunk", "shape", "off", "num"}  # held against one another, and the blob
    value = rule.lowest if at[0] in related else rule.highest
    if at[0] in related and cls.kind in ("task", "signal"):
        return
    if (cls.kind, at[0]) == ("rollout", "waves"):  # they rise, so the first is not the largest
        return
    assert says(cls, at, kind(value)) == ""


def test_refused_values_cannot_be_encoded():
    welcome = codec.decode("welcome", msgpack.unpackb((VECTORS / "welcome.bin").read_bytes())[3])
    for name, value in (("spent", 2**31), ("time", 2**63 - 1), ("cmd", -1), ("quota", 2**53)):
        with pytest.raises(Refused, match="MALFORMED"):
            codec.encode(dataclasses.replace(welcome, **{name: value}))
