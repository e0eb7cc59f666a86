"""Encoder and decoder around a graph model that the server hosts: split learning's device half.

Source: the PFGL paper, algorithm 1, as ``algorithms.md`` section 6.4 of the specification reads it.
A round is opened by ``train``, whose ``w`` only draws; then come turns that perish: encode, decode,
finish. What they do to this device's model is live until ``share`` turns it into the round's one
answer. A process that dies, or hears that the round was begun anew, falls back to what it answered
last. So a round is taken whole, or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.methods.local_sgd import TRAIN, LocalSgd
from edge_sdk.methods.optim import Optimiser, OptimiserState
from edge_sdk.methods.pfl import FLEET, LAST
from edge_sdk.methods.proximal_step import OPTIMISERS
from edge_sdk.methods.training_context import Batch, TrainingContext
from edge_sdk.wire.contract.method import (
    END,
    Array,
    Due,
    Effects,
    Event,
    Half,
    Scalars,
    Signal,
    Task,
    Update,
)
from edge_sdk.wire.contract.parameter_layout import Vector

SERVE = "serve"
"""The wake-up, and the ask, by which a device gets the graph's word for its newest window."""

SHARE = "share"
"""The ask that wants a round's answer."""

_NONE: NDArray[np.float32] = np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class SplitIteration:
    """The iteration at hand: one batch on its way through the graph.

    Attributes:
        step: Its number in the round.
        ids: The windows' numbers as asked, ``(B,)``.
        here: Which of them this device has, ``(B,)``.
        batch: Those windows, ``B' <= B``.
        h: Their activations, ``(B', F, L)``.
        frozen: Whether no step follows: only the server learns from it.
        g: The decoder's gradient, ``(P,)``, once ``z`` came; with it ``gh`` and ``loss``.
        gh: The loss's gradient in ``h`` on the direct path, ``(B', F, L)``.
        loss: Mean loss of the batch.
    """

    step: int
    ids: Array
    here: NDArray[np.bool_]
    batch: Batch
    h: Array
    frozen: bool = False
    g: Array | None = None
    gh: Array = field(default_factory=lambda: _NONE)
    loss: float = math.nan


@dataclass(frozen=True, slots=True, eq=False)
class SplitRound:
    """A round in play. Nothing of it is saved.

    Attributes:
        task: What opened the round.
        attempt: How often it was begun anew.
        p: The whole vector as it moves.
        moments: The optimiser's memory as it moves.
        turn: The iteration at hand, if one is.
        last: Number of the newest iteration; -1 before the first.
        losses: Of the iterations that ended with a step.
        used: Windows they had.
        known: What the graph said of windows, by their numbers; one round long.
        judged: Losses of windows that were held back, each with how many these were.
    """

    task: Task
    attempt: int
    p: Vector
    moments: OptimiserState
    turn: SplitIteration | None = None
    last: int = -1
    losses: tuple[float, ...] = ()
    used: int = 0
    known: Mapping[int, Array] = field(default_factory=dict)
    judged: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class SplitState:
    """What a device has learned. ``live`` and ``served`` are forgotten with the process.

    Attributes:
        p: Its whole vector as it was answered last.
        answered: The round it answered last; 0 before any.
        moments: What its optimiser remembers.
        kept: The model that the fleet chose, a whole vector; None while that is ``p``.
        live: The round in play.
        served: The number of the window that the graph spoke of last, and what it said.
    """

    p: Vector
    answered: int = 0
    moments: OptimiserState | None = None
    kept: Vector | None = None
    live: SplitRound | None = None
    served: tuple[int, Array] | None = None

    @property
    def chosen(self) -> Vector:
        """The whole vector to forecast with."""
        return self.p if self.kept is None else self.kept

    def arrays(self) -> dict[str, Array]:
        """Return the state as named arrays, to be saved; ``from_arrays`` is the way back."""
        out: dict[str, Array] = {"p": self.p, "answered": np.array(self.answered)}
        if self.kept is not None:
            out["kept"] = self.kept
        if self.moments is not None:
            taken, first, second = self.moments
            out |= {"taken": np.array(taken), "first": first, "second": second}
        return out

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> SplitState:
        """Rebuild a state from what ``arrays`` returned.

        Raises:
            KeyError: An array is missing.
        """
        moments = None
        if "taken" in arrays:
            moments = OptimiserState(int(arrays["taken"]), arrays["first"], arrays["second"])
        return cls(arrays["p"], int(arrays["answered"]), moments, arrays.get("kept"))


def station(local: TrainingContext, settings: LocalSgd) -> Half[SplitState]:
    """Answer a round's perishable questions, and ``share`` with the weights they have led to.

    Exactly one optimiser step ends an iteration: with the gradient that came back through the graph
    (``finish`` with ``hgrad``), or with the direct path's alone where none did: ``finish`` without
    it, or the next question. Where not even ``z`` came, the decoder is trained on ``z = 0``, which
    is what it forecasts with when the server is away. Windows that this device lacks are left out,
    and zero in what it sends.

    The model to forecast with is the last; or that of the round whose models and graph did best on
    windows that all hold back (``choice`` ``FLEET``): these are judged with the graph's word, at
    the end of a round's turns, and nothing is learned from them.
    """

    def apply(state: SplitState, event: Event) -> tuple[SplitState, Effects]:
        match event:
            case Task(ask=ask, arrays={"w": w}) if ask == TRAIN:
                return _opened(local, settings, state, event, w)
            case Task(ask=ask, arrays={"w": w}) if ask == END:
                return _ended(local, _told(state, event.values), w), ()
            case Task(ask="serve", arrays={"z": z}):
                return _spoken_of(state, event, z), ()
            case Task() if state.live is not None:
                return _played(local, settings, state, event)
            case Due(ask="serve"):
                return state, _served(local, state)
        return state, ()

    return Half(SplitState, apply, model=_model)


def _model(state: SplitState) -> Mapping[str, Array]:
    if state.served is None:
        return {"p": state.chosen}
    return {"p": state.chosen, "window": np.array(state.served[0]), "z": state.served[1][None]}


# --- a round --------------------------------------------------------------------------------------


def _opened(
    local: TrainingContext, settings: LocalSgd, state: SplitState, task: Task, w: Vector
) -> tuple[SplitState, Effects]:
    if w.shape != (local.spec.shared_size,):
        return state, ()
    if task.values.get("choice", LAST) == LAST:
        state = replace(state, kept=None) if state.kept is not None else state
    else:
        state = _told(state, task.values)
    live = _begun(local, settings, state, task, 0)
    return replace(state, live=live), _ready(local, live)


def _told(state: SplitState, asked: Scalars) -> SplitState:
    """Keep the model of the last answer if the fleet chose its round."""
    is_ours = bool(state.answered) and asked.get("kept", 0.0) == state.answered
    if not is_ours or (state.kept is not None and np.array_equal(state.kept, state.p)):
        return state
    return replace(state, kept=state.p)


def _begun(
    local: TrainingContext, settings: LocalSgd, state: SplitState, task: Task, attempt: int
) -> SplitRound:
    """Begin where the last answer left off; at ``w`` in the first round of all, or if so asked."""
    asked, p = task.values, state.p
    if not state.answered or asked.get("received", 0.0) == 1.0:
        p = local.spec.place(p, task.arrays["w"])
    moments = None if asked.get("fresh", 0.0) == 1.0 else state.moments
    return SplitRound(task, attempt, p, _fitting(_optimiser(settings, asked), p, moments))


def _ready(local: TrainingContext, live: SplitRound) -> Effects:
    """Say which windows there are to learn from; nothing if there are none."""
    span = local.span()
    if span is None:
        return ()
    told, task = {"first": float(span[0]), "last": float(span[1])}, live.task
    held = local.span(held=True) if task.values.get("choice", LAST) == FLEET else None
    if held is not None:
        told |= {"held_first": float(held[0]), "held_last": float(held[1])}
    return (Signal(local.client, task.round, "ready", 0, _NONE, told, live.attempt),)


def _played(
    local: TrainingContext, settings: LocalSgd, state: SplitState, task: Task
) -> tuple[SplitState, Effects]:
    """Take a perishable question of the round in play; a newer attempt begins it anew."""
    live = state.live
    if live is None or task.round != live.task.round or task.attempt < live.attempt:
        return state, ()
    if task.attempt > live.attempt:
        live = _begun(local, settings, state, live.task, task.attempt)
    if task.ask == SHARE:
        return _shared(local, settings, replace(state, live=live))
    effects: Effects = ()
    match task.ask:
        case "ready":
            effects = _ready(local, live)
        case "encode":
            live, effects = _encoded(local, settings, live, task)
        case "decode":
            live, effects = _decoded(local, live, task)
        case "keep" | "judge":
            live = _kept(live, task) if task.ask == "keep" else _judged(local, live, task)
        case "finish":
            live = _finished(local, settings, live, task)
        case "local":
            live = _alone(local, settings, live, task)
    return replace(state, live=live), effects


def _shared(
    local: TrainingContext, settings: LocalSgd, state: SplitState
) -> tuple[SplitState, Effects]:
    """Turn the round into one answer; who took part in no turn answers with what it had."""
    assert state.live is not None
    live, spec = _settled(local, settings, state.live), local.spec
    task = live.task
    if not (np.isfinite(live.p).all() and all(map(math.isfinite, live.losses[-1:]))):
        begun = spec.place(state.p, task.arrays["w"])
        return replace(state, p=begun, moments=None, live=None), ()
    report = {"n": float(live.used)}
    if live.losses:
        report["loss"] = float(np.mean(live.losses))
    if live.judged:
        losses, counts = zip(*live.judged, strict=True)
        report["validation"] = float(np.average(losses, weights=counts))
    after = replace(state, p=live.p, answered=task.round, moments=live.moments, live=None)
    update = Update(local.client, task.round, task.base, spec.shared(live.p), report)
    return after, (update,)


def _ended(local: TrainingContext, state: SplitState, w: Vector) -> SplitState:
    """Let go of the round, and of what the graph said if another round's model is kept."""
    if state.answered or w.shape != (local.spec.shared_size,):
        return replace(state, live=None, served=state.served if state.kept is None else None)
    return replace(state, p=local.spec.place(state.p, w), live=None)


# --- its turns ------------------------------------------------------------------------------------


def _encoded(
    local: TrainingContext, settings: LocalSgd, live: SplitRound, task: Task
) -> tuple[SplitRound, Effects]:
    """Send the activations of the windows that a task names; what was unfinished is finished."""
    ids = task.arrays.get("ids")
    if ids is None or ids.ndim != 1 or task.step <= live.last:
        return live, ()
    live = replace(_settled(local, settings, live), last=task.step)
    is_held = task.values.get("held", 0.0) == 1.0
    here, batch = local.named(ids, held=is_held)
    if not here.any():
        return live, ()
    (h,) = local.run("encode", p=live.p, x=batch.x)
    is_frozen = is_held or task.values.get("frozen", 0.0) == 1.0
    turn = SplitIteration(task.step, ids, here, batch, h, is_frozen)
    said = _signal(local, live, task, _spread(h, here))
    return replace(live, turn=turn), said


def _decoded(local: TrainingContext, live: SplitRound, task: Task) -> tuple[SplitRound, Effects]:
    """Send the loss's gradient in what the graph said."""
    turn, z = _fits(live, task, "z")
    if turn is None or z is None or turn.g is not None:
        return live, ()
    turn, gz = _through(local, live, turn, z)
    said = _signal(local, live, task, _spread(gz, turn.here), {"loss": turn.loss})
    return replace(live, turn=turn), said if np.isfinite(gz).all() else ()


def _kept(live: SplitRound, task: Task) -> SplitRound:
    """Remember what the graph said, to learn from it later without the server."""
    turn, z = _fits(live, task, "z")
    if turn is None or z is None:
        return live
    known = {int(number): row for number, row in zip(turn.ids[turn.here], z, strict=True)}
    return replace(live, turn=None, known={**live.known, **known})


def _judged(local: TrainingContext, live: SplitRound, task: Task) -> SplitRound:
    """Note the loss on windows held back, with what the graph says of them; learn nothing."""
    turn, z = _fits(live, task, "z")
    if turn is None or z is None or not turn.frozen:
        return live
    loss = _through(local, live, turn, z)[0].loss
    judged = ((loss, len(turn.batch)),) if math.isfinite(loss) else ()
    return replace(live, turn=None, judged=(*live.judged, *judged))


def _finished(
    local: TrainingContext, settings: LocalSgd, live: SplitRound, task: Task
) -> SplitRound:
    """Take the iteration's one step, with what came back through the graph, if it did."""
    turn, hgrad = _fits(live, task, "hgrad")
    if turn is None:
        return live
    return _stepped(local, settings, live, turn, hgrad if turn.g is not None else None)


def _alone(local: TrainingContext, settings: LocalSgd, live: SplitRound, task: Task) -> SplitRound:
    """Take steps on windows of which the graph has spoken, without asking it again."""
    if task.step <= live.last:
        return live
    live = _settled(local, settings, live)
    numbers = np.array(sorted(live.known), np.int64)
    size = min(int(task.values.get("batch", len(numbers))), len(numbers))
    for k in range(int(task.values.get("steps", 0.0)) if size else 0):
        ids = np.take(numbers, np.arange(k * size, (k + 1) * size), mode="wrap")
        here, batch = local.named(ids)
        if not here.any():
            break
        (h,) = local.run("encode", p=live.p, x=batch.x)
        z = np.stack([live.known[int(number)] for number in ids[here]])
        turn, _ = _through(local, live, SplitIteration(task.step, ids, here, batch, h), z)
        live = _stepped(local, settings, live, turn, None)
    return replace(live, last=max(live.last, task.step))


def _settled(local: TrainingContext, settings: LocalSgd, live: SplitRound) -> SplitRound:
    """End an iteration that nobody ended: with the direct path's gradient, ``z = 0`` if it must."""
    turn = live.turn
    if turn is None:
        return live
    if turn.frozen:
        return replace(live, turn=None)
    return _stepped(local, settings, live, turn, None)


def _through(
    local: TrainingContext, live: SplitRound, turn: SplitIteration, z: Array
) -> tuple[SplitIteration, Array]:
    loss, g, gh, gz = local.run("decode", p=live.p, h=turn.h, z=z, y=turn.batch.y)
    return replace(turn, g=g, gh=gh, loss=float(loss)), gz


def _stepped(
    local: TrainingContext,
    settings: LocalSgd,
    live: SplitRound,
    turn: SplitIteration,
    hgrad: Array | None,
) -> SplitRound:
    """Step down the loss's whole gradient, and towards what this device leans on."""
    if turn.g is None:
        turn, _ = _through(local, live, turn, np.zeros_like(turn.h))
    assert turn.g is not None
    gh = turn.gh if hgrad is None else turn.gh + hgrad
    (ge,) = local.run("encode_vjp", p=live.p, x=turn.batch.x, gh=gh)
    asked, spec = live.task.values, local.spec
    g, prox = turn.g + ge, asked.get("prox", settings.prox)
    if prox:
        pull = (spec.shared(live.p) - live.task.arrays["w"]) * live.p.dtype.type(prox)
        g = g + spec.lift(pull)
    p, moments = _optimiser(settings, asked).update(live.p, g, live.moments)
    losses, used = (*live.losses, turn.loss), live.used + len(turn.batch)
    return replace(live, p=p, moments=moments, turn=None, losses=losses, used=used)


# --- what is sent, and what it fits ---------------------------------------------------------------


def _fits(live: SplitRound, task: Task, name: str) -> tuple[SplitIteration | None, Array | None]:
    """Return the iteration a task belongs to, and its array's rows of our own windows."""
    turn = live.turn
    if turn is None or turn.step != task.step:
        return None, None
    array = task.arrays.get(name)
    if array is None or array.shape != (len(turn.ids), *turn.h.shape[1:]):
        return turn, None
    return turn, array[turn.here].astype(turn.h.dtype, copy=False)


def _spread(rows: Array, here: NDArray[np.bool_]) -> Array:
    """Return an array with a row for every window that was asked for, zero where we have none.

    >>> _spread(np.ones((1, 1)), np.array([False, True])).ravel().tolist()
    [0.0, 1.0]
    """
    out = np.zeros((len(here), *rows.shape[1:]), rows.dtype)
    out[here] = rows
    return out


def _signal(
    local: TrainingContext,
    live: SplitRound,
    task: Task,
    array: Array,
    values: Scalars = MappingProxyType({}),
) -> Effects:
    said = Signal(local.client, task.round, task.ask, task.step, array, values, live.attempt)
    return (said,)


def _spoken_of(state: SplitState, task: Task, z: Array) -> SplitState:
    """Take the graph's word for a window; none that was asked for with another model."""
    told = _told(state, task.values)
    return told if told is not state else replace(state, served=(task.step, z[0]))


def _served(local: TrainingContext, state: SplitState) -> Effects:
    """Ask what the graph says of the newest window."""
    newest = local.newest()
    if newest is None:
        return ()
    number, x = newest
    (h,) = local.run("encode", p=state.chosen, x=x)
    return (Signal(local.client, 0, SERVE, number, h),)


def _optimiser(settings: LocalSgd, asked: Scalars) -> Optimiser:
    rated = OPTIMISERS.get(asked.get("optimiser", 0.0), settings.optimiser)
    return rated(float(asked.get("rate", settings.rate)))


def _fitting(optimiser: Optimiser, p: Vector, kept: OptimiserState | None) -> OptimiserState:
    """Return the memory of the rounds before, or a fresh one where another optimiser made it."""
    fresh: Any = optimiser.init(p)
    if kept is None or [a.shape for a in kept[1:]] != [a.shape for a in fresh[1:]]:
        return OptimiserState(*fresh)
    return kept
