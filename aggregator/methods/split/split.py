"""Split learning around a personalising half: the graph model is part of the state, and lasts.

The inner half asks each device for a round's weights with ``train`` and mixes them. Between its
question and the answers lie the round's turns (``play``), which perish. What they made of the graph
model comes back as one journalled ``Played``, so the state is a fold over the journal as any
other's; only then are answers taken, and the round's deadline begins. A process that was killed
before that begins the round anew under the next ``attempt``; one that was killed after it asks for
the answers again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from aggregator.methods.base.averaging import ASK
from aggregator.methods.base.latest_update_rounds import is_news
from aggregator.methods.personalised.personalised import Personalised
from aggregator.methods.split.activation_clipping import WEIGHTS_RANGE, bound, remembered
from aggregator.methods.split.split_rounds import SplitBinding, play
from edge_sdk.wire.contract.method import (
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
from edge_sdk.wire.contract.parameter_layout import Vector

AGAIN = "again"
"""The wake-up that begins an open round anew."""

MEANS = 1_000_000
"""Scalars of the stations' mean activations, up to which they are kept over rounds."""


@dataclass(frozen=True, slots=True, eq=False)
class Woven(Personalised):
    """A personalising half's state, and what the turns of its rounds need. Mappings are by client.

    Attributes:
        net: The graph model's parameters ``p``, and its optimiser's ``first`` and ``second``.
        chosen: The parameters ``p`` of the round that the fleet found best, where it chooses one.
        taken: The optimiser's steps.
        attempt: How often the open round was begun anew.
        settled: The last round whose turns are over.
        slots: Where each station stands on the graph's axis.
        masked: Whom most of the others left out when the last round closed.
        means: Mean activations of each, ``(F, L)``, in the last turns.
        past: The largest accepted lengths of each: of activations ``h``, gradients ``g`` and
            weights ``w``.
        astray: Whose weights left the range of its past in the open round; how long they were.
        early: Answers that came before the turns were over.
        told: What is told of the turns when the round closes.
    """

    net: Mapping[str, Array] = field(default_factory=dict)
    chosen: Mapping[str, Array] = field(default_factory=dict)
    taken: int = 0
    attempt: int = 0
    settled: int = 0
    slots: Mapping[str, int] = field(default_factory=dict)
    masked: Mapping[str, bool] = field(default_factory=dict)
    means: Mapping[str, Array] = field(default_factory=dict)
    past: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    astray: Mapping[str, float] = field(default_factory=dict)
    early: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    told: Mapping[str, Any] = field(default_factory=dict)

    @property
    def here(self) -> tuple[str, ...]:
        """Who is linked."""
        return tuple(name for name, present in self.who.present.items() if present)

    @property
    def is_settled(self) -> bool:
        """Whether the turns of the open round are over, so that its answers count."""
        return self.settled >= self.round


def split(
    inner: Half[Any], score: SplitBinding, deadline: float, places: Mapping[str, int]
) -> Half[Any]:
    """Wrap a personalising half.

    Args:
        inner: The half; its state is a ``Personalised``, here a ``Woven``.
        score: What plays inside a round.
        deadline: Seconds from the end of a round's turns to that of the round.
        places: Slots of stations whose place on the graph is known; others get what is left.
    """

    def apply(state: Woven, event: Event) -> tuple[Woven, Effects]:
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
        given, event = _weighed(state, event, score)
        after, effects = inner.apply(given, event)
        if isinstance(event, Member) and event.present:
            after = _placed(after, event.client, score.graph.capacity, places)
        return _between(after, effects, score)

    def settled(state: Woven, event: Played) -> tuple[Woven, Effects]:
        """Take over what the turns came to, then whatever was answered meanwhile."""
        state, early = replace(_taken_over(state, event), early={}), state.early
        effects: Effects = (Due(state.round, ASK, after=deadline),)
        for name in sorted(early):
            state, more = apply(state, _again(name, early[name]))
            effects += more
        return state, effects

    def init(w: Vector) -> Woven:
        p, first = score.graph.init(score.seed), inner.init(w)
        net = {"p": p, "first": np.zeros_like(p), "second": np.zeros_like(p)}
        return Woven(first.round, first.version, is_open=first.is_open, w=first.w, net=net)

    return Half(init, apply, inner.model, play(score))


def _between(state: Woven, effects: Effects, score: SplitBinding) -> tuple[Woven, Effects]:
    """Note whom a closed round left out; the deadline of a new one begins after its turns.

    The graph of the round that the fleet found best is kept: the devices keep its models.
    """
    closed = next((e for e in effects if isinstance(e, Closed)), None)
    if closed is not None:
        report = {**closed.report, **state.told}
        if state.astray and closed.moved:
            stray = dict.fromkeys(sorted(state.astray), "out of range")
            report["dropped"] = {**report.get("dropped", {}), **stray}
        told = closed = Closed(closed.round, closed.version, closed.moved, report)
        effects = tuple(told if isinstance(effect, Closed) else effect for effect in effects)
        if score.by_fleet and closed.moved and state.kept == closed.round:
            state = replace(state, chosen={"p": state.net["p"]})
        dropped = closed.report.get("dropped", {}) if score.turns.mask else {}
        masked = dict.fromkeys(sorted(dropped), True) if closed.moved else state.masked
        state = replace(state, attempt=0, masked=masked, told={}, astray={})
    if not state.is_settled:
        effects = tuple(e for e in effects if not (isinstance(e, Due) and e.ask == ASK))
    return state, effects


def _placed(state: Woven, client: str, capacity: int, places: Mapping[str, int]) -> Woven:
    """Give a station its slot: its known place, else the first that nobody holds or may claim.

    Who is known no more gives its own back. Without a free one, a station takes part in no turn.
    """
    if client in state.slots:
        return state
    slots = {n: at for n, at in state.slots.items() if n in state.who.present}
    taken = {*slots.values(), *places.values()}
    at = places.get(client, next((k for k in range(capacity) if k not in taken), None))
    return state if at is None else replace(state, slots={**slots, client: at})


def _weighed(state: Woven, event: Event, score: SplitBinding) -> tuple[Woven, Event]:
    """Judge the weights of an answer that counts, where there is a guard."""
    has_guard = bool(np.isfinite(score.turns.most))
    if not (isinstance(event, Update) and has_guard and state.is_open and is_news(state, event)):
        return state, event
    return _within_range(state, event)


def _within_range(state: Woven, update: Update) -> tuple[Woven, Update]:
    """Take a station's last accepted weights for its answer, if that left the range of its past.

    Before any was accepted, the common model stands for its past and for its answer.
    """
    length = float(np.linalg.norm(np.asarray(update.vector, np.float64)))
    past = {name: one["w"] for name, one in state.past.items() if "w" in one}
    common = float(np.linalg.norm(state.w)) or float(np.sqrt(state.w.size))
    known = {update.sender: common, **past}
    if not length <= bound(update.sender, known, WEIGHTS_RANGE):
        before = state.held.get(update.sender, state.w)
        values = {name: v for name, v in update.values.items() if name != "validation"}
        strayed = {**state.astray, update.sender: length}
        return replace(state, astray=strayed), replace(update, vector=before, values=values)
    longest = remembered(past, {update.sender: length}, ())[update.sender]
    own = {**state.past.get(update.sender, {}), "w": longest}
    return replace(state, past={**state.past, update.sender: own}), update


def _taken_over(state: Woven, event: Played) -> Woven:
    net = {name: event.arrays[name] for name in ("p", "first", "second")}
    means = {n.partition(".")[2]: a for n, a in event.arrays.items() if n.startswith("mean.")}
    told: dict[str, Any] = {"turns": event.record, "attempt": event.attempt}
    past = {name: dict(one) for name, one in state.past.items()}
    for of, _, name in (key.partition(".") for key in sorted(event.values)):
        if name and of in ("h", "g"):
            past[name] = {**past.get(name, {}), of: event.values[f"{of}.{name}"]}
    pairs = ((key.partition("."), n) for key, n in event.values.items())
    stray = {name: int(n) for (of, _, name), n in pairs if of == "astray"}
    told |= {"astray": stray} if stray else {}
    if "loss" in event.values:
        told["turns_loss"] = event.values["loss"]
    small = sum(mean.size for mean in means.values()) <= MEANS
    return replace(
        state,
        net=net,
        taken=int(event.values["taken"]),
        settled=event.round,
        means=means if small else {},
        past=past,
        told=told,
    )


def _kept(update: Update) -> dict[str, Any]:
    kept: dict[str, Any] = {"round": update.round, "base": update.base, "vector": update.vector}
    return kept | {"names": "\n".join(update.values), "values": np.array([*update.values.values()])}


def _again(name: str, kept: Mapping[str, Any]) -> Update:
    names = kept["names"].split("\n") if kept["names"] else []
    values = dict(zip(names, map(float, kept["values"]), strict=True))
    return Update(name, kept["round"], kept["base"], kept["vector"], values)
