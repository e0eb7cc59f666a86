"""Encode journalled events and pending timers for the store, and decode them bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from aggregator.store.types import Timer
from edge_sdk.wire.contract.method import (
    Due,
    Event,
    Member,
    ParentModel,
    Played,
    Unlearned,
    Update,
)
from edge_sdk.wire.protocol.codec import Leaf, pack_leaves, unpack_leaves


def pack_event(event: Event) -> tuple[bytes, bytes | None]:
    """Encode an event for the journal; return its facts, and its vector separately.

    Raises:
        TypeError: Events of this type are never journalled.
    """
    facts, vector = _facts(event)
    return pack_leaves(facts), vector


def unpack_event(kind: str, device: str | None, facts: bytes, vector: bytes | None) -> Event | None:
    """Decode a journalled event bit for bit; return None if its vector was pruned."""
    return _event(kind, device, unpack_leaves(facts), vector)


def _facts(event: Event) -> tuple[dict[str, Leaf], bytes | None]:
    if isinstance(event, Update):
        vector = np.ascontiguousarray(event.vector)
        dtype = vector.dtype.newbyteorder("<")
        values = {name: float(value) for name, value in event.values.items()}
        facts = {"round": event.round, "base": event.base, "values": values, "dtype": dtype.str}
        if event.check:
            facts["check"] = event.check
        return facts, vector.astype(dtype).tobytes()
    if isinstance(event, Due):
        return {
            "round": event.round,
            "ask": event.ask,
            "step": event.step,
            "after": event.after,
        }, None
    if isinstance(event, Member):
        return {"client": event.client, "present": event.present}, None
    if isinstance(event, Played):
        facts = {"round": event.round, "attempt": event.attempt, "record": event.record}
        facts["values"] = {name: float(value) for name, value in event.values.items()}
        return facts, pack_leaves(dict(event.arrays))
    if isinstance(event, Unlearned):
        return {"client": event.client}, None
    if isinstance(event, ParentModel):
        names = ("run", "number", "attempt", "step", "version", "is_last")
        arrays = {"vector": event.vector, "carry": event.carry}
        return {name: getattr(event, name) for name in names}, pack_leaves(arrays)
    raise TypeError(f"a {type(event).__name__} is never journalled")


_PLAIN: Mapping[str, Callable[..., Event]] = {
    "due": Due,
    "member": Member,
    "unlearned": Unlearned,
}
"""Events without a vector, by kind."""


def _event(
    kind: str, device: str | None, facts: Mapping[str, Leaf], vector: bytes | None
) -> Event | None:
    if (plain := _PLAIN.get(kind)) is not None:
        return plain(**facts)
    if vector is None:
        return None
    if kind == "parent":
        return ParentModel(**unpack_leaves(vector), **facts)
    if kind == "played":
        return Played(arrays=unpack_leaves(vector), **facts)
    return Update(
        sender=device or "",
        round=facts["round"],
        base=facts["base"],
        vector=np.frombuffer(vector, np.dtype(facts["dtype"])),
        values=facts["values"],
        check=facts.get("check", b""),
    )


def pack_timers(timers: Sequence[Timer]) -> bytes:
    """Encode timers for the store."""
    return pack_leaves(
        {"timers": [[t.due.round, t.due.ask, t.due.step, t.due.after, t.at] for t in timers]}
    )


def unpack_timers(data: bytes) -> tuple[Timer, ...]:
    """Decode stored timers."""
    return tuple(
        Timer(Due(number, ask, step, after), at)
        for number, ask, step, after, at in unpack_leaves(data)["timers"]
    )
