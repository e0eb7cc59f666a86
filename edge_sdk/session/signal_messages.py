"""Split a perishable signal into messages of whole rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from edge_sdk.wire.contract.method import Signal
from edge_sdk.wire.protocol.array_fragments import cut
from edge_sdk.wire.protocol.messages import SignalMessage


def signal_messages(signal: Signal, enc: str, *, run: int) -> Iterator[SignalMessage]:
    """Yield the messages of a signal.

    Args:
        signal: Signal of a device half.
        enc: Encoding of its array.
        run: Run of the task that it answers.

    Raises:
        Refused: BAD_TENSOR: a scalar is not finite; no message was made.
    """
    common: dict[str, Any] = {
        "run": run,
        "round": signal.round,
        "ask": signal.ask,
        "attempt": signal.attempt,
        "step": signal.step,
        "vals": dict(signal.values),
    }
    if not signal.array.size:
        yield SignalMessage(**common)
        return
    shape = tuple(map(int, signal.array.shape))
    for piece in list(cut(signal.array, enc)):
        yield SignalMessage(**common, enc=enc, shape=shape, **piece._asdict())
