"""Split learning around a personalising half, with the graph model as part of the state.

The inner half sends each device a ``train`` task for a round's weights and mixes them. Between the
task and the updates the round's turns take place (``split_rounds.play``), which are not journalled.
Their result for the graph model is one journalled ``Played``, so the state is a fold over the
journal like any other; only then are updates accepted, and the round's deadline begins. A process
that stops before that begins the round again under the next ``attempt``; one that stops after it
sends the tasks again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from aggregator.extensions.papers.personalised.personalised import Personalised
from aggregator.extensions.papers.split.activation_clipping import WEIGHTS_RANGE, bound, remembered
from aggregator.extensions.papers.split.split_rounds import play
from aggregator.extensions.papers.split.split_types import SplitBinding
from aggregator.methods.base.quorum import counts
from aggregator.methods.base.round_machine import ASK
from edge_sdk.protocol.contract.method import (
    Array,
    Closed,
    Due,
    Effects,
    Event,
    Half,
    Member,
    Played,
    Update,
)
from edge_sdk.protocol.contract.parameter_layout import Vector

MEANS = 1_000_000  # scalars of the stations' mean activations up to which they are kept over rounds


@dataclass(frozen=True, slots=True, eq=False)
class SplitServerState(Personalised):
    """A personalising half's state, and that of its rounds' turns. Mappings are by client."""

    # the graph model's parameters ``p``, and its optimiser's ``first`` and ``second``
    net: Mapping[str, Array] = field(default_factory=dict)
    # parameters ``p`` of the round with the fleet's least loss, where it chooses one
    chosen: Mapping[str, Array] = field(default_factory=dict)
    taken: int = 0  # number of the optimiser's steps
    attempt: int = 0  # number of times the open round was begun again
    settled: int = 0  # last round whose turns are over
    # slot of each station on the graph's axis
    slots: Mapping[str, int] = field(default_factory=dict)
    # stations that most of the others left out when the last round closed
    masked: Mapping[str, bool] = field(default_factory=dict)
    # mean activations of each, ``(F, L)``, in the last turns
    means: Mapping[str, Array] = field(default_factory=dict)
    # largest accepted norms of each: of activations ``h``, gradients ``g`` and weights ``w``
    past: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    # norm of the weights that left the range of their past in the open round
    astray: Mapping[str, float] = field(default_factory=dict)
    # updates that arrived before the turns were over
    early: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # part of the round's report on its turns
    turns_report: Mapping[str, Any] = field(default_factory=dict, metadata={"leaf": "told"})

    @property
    def linked(self) -> tuple[str, ...]:
        return tuple(name for name, present in self.quorum.present.items() if present)

    @property
    def is_settled(self) -> bool:
        """Return True if the turns of the open round are over, so that updates count."""
        return self.settled >= self.round


def split(
    inner: Half[Any], binding: SplitBinding, deadline: float, places: Mapping[str, int]
) -> Half[Any]:
    """Wrap a personalising half.

    Args:
        inner: The half; its state is a ``Personalised``, here a ``SplitServerState``.
        binding: Settings of the turns inside a round.
        deadline: Seconds from the end of a round's turns to the end of the round.
        places: Slots of stations with a known position on the graph; others get the remaining ones.
    """

    def apply(state: SplitServerState, event: Event) -> tuple[SplitServerState, Effects]:
        match event:
            case Due(ask="again", round=number):
                is_open = number == state.round and state.is_open and not state.is_settled
                return (replace(state, attempt=state.attempt + 1) if is_open else state), ()
            case Played(round=number, attempt=attempt):
                if (number, attempt) != (state.round, state.attempt) or state.is_settled:
                    return state, ()
                return settled(state, event)
            case Update() if state.is_open and not state.is_settled:
                return replace(state, early={**state.early, event.sender: _kept(event)}), ()
        given, event = _weighed(state, event, binding)
        after, effects = inner.apply(given, event)
        if isinstance(event, Member) and event.present:
            after = _placed(after, event.client, binding.graph.capacity, places)
        return _between(after, effects, binding)

    def settled(state: SplitServerState, event: Played) -> tuple[SplitServerState, Effects]:
        """Apply the result of the turns, then the updates that arrived before."""
        state, early = replace(_taken_over(state, event), early={}), state.early
        effects: Effects = (Due(state.round, ASK, after=deadline),)
        for name in sorted(early):
            state, more = apply(state, _again(name, early[name]))
            effects += more
        return state, effects

    def init(w: Vector) -> SplitServerState:
        p, first = binding.graph.init(binding.seed), inner.init(w)
        net = {"p": p, "first": np.zeros_like(p), "second": np.zeros_like(p)}
        return SplitServerState(
            first.round, first.version, is_open=first.is_open, w=first.w, net=net
        )

    return Half(init, apply, inner.model, play(binding))


def _between(
    state: SplitServerState, effects: Effects, binding: SplitBinding
) -> tuple[SplitServerState, Effects]:
    """Record the clients that a closed round left out, and delay a new round's deadline.

    The graph of the round with the fleet's least loss is kept: the devices keep its models.
    """
    closed = next((e for e in effects if isinstance(e, Closed)), None)
    if closed is not None:
        report = {**closed.report, **state.turns_report}
        if state.astray and closed.moved:
            out_of_range = dict.fromkeys(sorted(state.astray), "out of range")
            report["dropped"] = {**report.get("dropped", {}), **out_of_range}
        closed = Closed(closed.round, closed.version, closed.moved, report)
        effects = tuple(closed if isinstance(effect, Closed) else effect for effect in effects)
        if binding.by_fleet and closed.moved and state.kept == closed.round:
            state = replace(state, chosen={"p": state.net["p"]})
        dropped = closed.report.get("dropped", {}) if binding.turns.mask_excluded else {}
        masked = dict.fromkeys(sorted(dropped), True) if closed.moved else state.masked
        state = replace(state, attempt=0, masked=masked, turns_report={}, astray={})
    if not state.is_settled:
        effects = tuple(e for e in effects if not (isinstance(e, Due) and e.ask == ASK))
    return state, effects


def _placed(
    state: SplitServerState, client: str, capacity: int, places: Mapping[str, int]
) -> SplitServerState:
    """Assign a station its slot: its known one, else the first that is free and not reserved.

    A station that is removed frees its slot. Without a free slot, a station takes part in no turn.
    """
    if client in state.slots:
        return state
    slots = {n: at for n, at in state.slots.items() if n in state.quorum.present}
    taken = {*slots.values(), *places.values()}
    at = places.get(client, next((k for k in range(capacity) if k not in taken), None))
    return state if at is None else replace(state, slots={**slots, client: at})


def _weighed(
    state: SplitServerState, event: Event, binding: SplitBinding
) -> tuple[SplitServerState, Event]:
    has_guard = bool(np.isfinite(binding.turns.most))
    if not (isinstance(event, Update) and has_guard and state.is_open and counts(state, event)):
        return state, event
    return _within_range(state, event)


def _within_range(state: SplitServerState, update: Update) -> tuple[SplitServerState, Update]:
    """Replace an update out of the range of its station's past by the last accepted weights.

    Before any was accepted, the common model is used for both.
    """
    length = float(np.linalg.norm(np.asarray(update.vector, np.float64)))
    past = {name: one["w"] for name, one in state.past.items() if "w" in one}
    common = float(np.linalg.norm(state.w)) or float(np.sqrt(state.w.size))
    known = {update.sender: common, **past}
    if not length <= bound(update.sender, known, WEIGHTS_RANGE):
        before = state.held.get(update.sender, state.w)
        values = {name: v for name, v in update.values.items() if name != "validation"}
        astray = {**state.astray, update.sender: length}
        return replace(state, astray=astray), replace(update, vector=before, values=values)
    longest = remembered(past, {update.sender: length}, ())[update.sender]
    own = {**state.past.get(update.sender, {}), "w": longest}
    return replace(state, past={**state.past, update.sender: own}), update


def _taken_over(state: SplitServerState, event: Played) -> SplitServerState:
    net = {name: event.arrays[name] for name in ("p", "first", "second")}
    means = {n.partition(".")[2]: a for n, a in event.arrays.items() if n.startswith("mean.")}
    report: dict[str, Any] = {"turns": event.record, "attempt": event.attempt}
    past = {name: dict(one) for name, one in state.past.items()}
    for of, _, name in (key.partition(".") for key in sorted(event.values)):
        if name and of in ("h", "g"):
            past[name] = {**past.get(name, {}), of: event.values[f"{of}.{name}"]}
    pairs = ((key.partition("."), n) for key, n in event.values.items())
    counts = {name: int(n) for (of, _, name), n in pairs if of == "astray"}
    report |= {"astray": counts} if counts else {}
    if "loss" in event.values:
        report["turns_loss"] = event.values["loss"]
    small = sum(mean.size for mean in means.values()) <= MEANS
    return replace(
        state,
        net=net,
        taken=int(event.values["taken"]),
        settled=event.round,
        means=means if small else {},
        past=past,
        turns_report=report,
    )


def _kept(update: Update) -> dict[str, Any]:
    kept: dict[str, Any] = {"round": update.round, "base": update.base, "vector": update.vector}
    return kept | {"names": "\n".join(update.values), "values": np.array([*update.values.values()])}


def _again(name: str, kept: Mapping[str, Any]) -> Update:
    names = kept["names"].split("\n") if kept["names"] else []
    values = dict(zip(names, map(float, kept["values"]), strict=True))
    return Update(name, kept["round"], kept["base"], kept["vector"], values)
