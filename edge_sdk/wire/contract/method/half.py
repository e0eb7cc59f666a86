"""Define a half: a pure state machine that a shell drives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from edge_sdk.wire.contract.method.events import Array, Effects, Event, Signal
from edge_sdk.wire.contract.parameter_layout import Vector

S = TypeVar("S")


class Play(NamedTuple, Generic[S]):
    """A pure state machine for the transient turns inside a round, beside a half.

    A shell drives it with events that are not journalled. It restarts from the half's state
    whenever the half opens a round, restarts one (``attempt``), or has applied ``Played``; a
    restarted process restarts it as well. Its effects are tasks, timers, and ``Played`` at the end.
    """

    begin: Callable[[S, Any], Any]  # a half's state, and the earlier result or None
    apply: Callable[[Any, Event], tuple[Any, Effects]]
    wants: Callable[[Any, Signal, tuple[int, ...]], bool]  # accept an answer by its shape
    placed: Callable[[Any, S], Any]  # the same, where the half only assigned another slot


class Half(NamedTuple, Generic[S]):
    """One end of a method: a pure state machine that a shell drives.

    ``apply`` never raises for anything a peer could have sent (the shells admit first) and never
    blocks; an exception inside it means that no state has changed. Where nothing changes it returns
    the very state it was given, which the shell then does not journal.
    """

    init: Callable[[Vector], S]
    apply: Callable[[S, Event], tuple[S, Effects]]
    model: Callable[[S], Mapping[str, Array]]  # feeds to forecast with, or to publish
    play: Play[Any] | None = None  # present where a round has transient turns
