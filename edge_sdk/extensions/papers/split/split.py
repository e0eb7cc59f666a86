"""Train encoder and decoder around a graph model on the server: split learning's device half.

Source: the PFGL paper, algorithm 1, as ``algorithms.md`` section 6.4 of the specification reads it.
``train`` opens a round, and its ``w`` enters only the proximal term; then follow transient turns:
encode, decode, finish. Their effect on this device's model is kept in ``live`` until ``share``
turns it into the round's one answer. A process that restarts, or receives a restarted round,
returns to its last answer. So a round is applied as a whole, or not at all.

The loop of ``local_sgd.train`` is not used: an iteration is spread over several messages, its
gradient is put together from two parts of which one may never arrive, and the server, not the
device, chooses its windows. The step itself is the common one, ``optim.optimiser_step``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from edge_sdk.extensions.papers.chosen_model import FLEET, LAST, fleet_choice
from edge_sdk.extensions.papers.contracts import SHARE
from edge_sdk.extensions.papers.split.split_state import (
    NO_ARRAY,
    SplitIteration,
    SplitRound,
    SplitState,
)
from edge_sdk.methods.local_sgd import TRAIN, LocalSgd, answer
from edge_sdk.methods.training_context import TrainingContext
from edge_sdk.protocol.contract.method import (
    END,
    SERVE,
    Array,
    Due,
    Effects,
    Event,
    Half,
    Scalars,
    Signal,
    Task,
)
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.shared_math.optim import add_proximal, chain, optimiser_step, resumed


def split_half(local: TrainingContext, settings: LocalSgd) -> Half[SplitState]:
    """Answer a round's transient tasks, and ``share`` with the weights after them.

    Exactly one optimiser step ends an iteration: with the gradient that came back through the graph
    (``finish`` with ``hgrad``), or with the direct path's alone where none did: ``finish`` without
    it, or the next task. Where ``z`` is missing too, the decoder is trained on ``z = 0``, which it
    also forecasts with when the server is unreachable. Windows that this device lacks are left out,
    and zero in the arrays it sends.

    The model to forecast with is the last; or that of the round whose models and graph had the
    lowest loss on windows that all devices hold back (``choice`` ``FLEET``): these are evaluated
    with the graph's output, at the end of a round's turns, and not trained on.
    """

    def apply(state: SplitState, event: Event) -> tuple[SplitState, Effects]:
        match event:
            case Task(ask=ask, arrays={"w": w}) if ask == TRAIN:
                return _opened(local, settings, state, event, w)
            case Task(ask=ask, arrays={"w": w}) if ask == END:
                return _ended(local, fleet_choice(state, event.values), w), ()
            case Task(ask="serve", arrays={"z": z}):
                return _with_graph_output(state, event, z), ()
            case Task() if state.live is not None:
                return _answered(local, settings, state, event)
            case Due(ask="serve"):
                return state, _served(local, state)
        return state, ()

    return Half(SplitState, apply, model=_model)


def _model(state: SplitState) -> Mapping[str, Array]:
    if state.served is None:
        return {"p": state.chosen}
    return {"p": state.chosen, "window": np.array(state.served[0]), "z": state.served[1][None]}


# --- a round ---------------------------------------------------------------------------------------


def _opened(
    local: TrainingContext, settings: LocalSgd, state: SplitState, task: Task, w: Vector
) -> tuple[SplitState, Effects]:
    if w.shape != (local.spec.shared_size,):
        return state, ()
    if task.values.get("choice", LAST) == LAST:
        state = replace(state, kept=None) if state.kept is not None else state
    else:
        state = fleet_choice(state, task.values)
    live = _start(local, settings, state, task, 0)
    return replace(state, live=live), _ready(local, live)


def _start(
    local: TrainingContext, settings: LocalSgd, state: SplitState, task: Task, attempt: int
) -> SplitRound:
    """Start from the last answer; at ``w`` in the first round of all, or if so configured."""
    values, p = task.values, state.p
    if not state.answered or values.get("received", 0.0) == 1.0:
        p = local.spec.place(p, task.arrays["w"])
    moments = None if values.get("fresh", 0.0) == 1.0 else state.moments
    return SplitRound(task, attempt, p, resumed(settings.optimiser_of(values), p, moments))


def _ready(local: TrainingContext, live: SplitRound) -> Effects:
    span = local.span()
    if span is None:
        return ()
    values, task = {"first": float(span[0]), "last": float(span[1])}, live.task
    held = local.span(held=True) if task.values.get("choice", LAST) == FLEET else None
    if held is not None:
        values |= {"held_first": float(held[0]), "held_last": float(held[1])}
    return (Signal(local.client, task.round, "ready", 0, NO_ARRAY, values, live.attempt),)


def _answered(
    local: TrainingContext, settings: LocalSgd, state: SplitState, task: Task
) -> tuple[SplitState, Effects]:
    """Answer a transient task of the round in progress; a newer attempt restarts it."""
    live = state.live
    if live is None or task.round != live.task.round or task.attempt < live.attempt:
        return state, ()
    if task.attempt > live.attempt:
        live = _start(local, settings, state, live.task, task.attempt)
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
            live = _stored(live, task) if task.ask == "keep" else _validated(local, live, task)
        case "finish":
            live = _finished(local, settings, live, task)
        case "local":
            live = _local_steps(local, settings, live, task)
    return replace(state, live=live), effects


def _shared(
    local: TrainingContext, settings: LocalSgd, state: SplitState
) -> tuple[SplitState, Effects]:
    """Return the answer of a round; after a round without turns, the earlier model."""
    assert state.live is not None
    live, spec = _ended_iteration(local, settings, state.live), local.spec
    task = live.task
    if not (np.isfinite(live.p).all() and all(map(math.isfinite, live.losses[-1:]))):
        received = spec.place(state.p, task.arrays["w"])
        return replace(state, p=received, moments=None, live=None), ()
    report = {"n": float(live.used)}
    if live.losses:
        report["loss"] = float(np.mean(live.losses))
    if live.judged:
        losses, counts = zip(*live.judged, strict=True)
        report["validation"] = float(np.average(losses, weights=counts))
    after = replace(state, p=live.p, answered=task.round, moments=live.moments, live=None)
    return after, (answer(local, task, spec.shared(live.p), report),)


def _ended(local: TrainingContext, state: SplitState, w: Vector) -> SplitState:
    if state.answered or w.shape != (local.spec.shared_size,):
        return replace(state, live=None, served=state.served if state.kept is None else None)
    return replace(state, p=local.spec.place(state.p, w), live=None)


# --- its turns -------------------------------------------------------------------------------------


def _encoded(
    local: TrainingContext, settings: LocalSgd, live: SplitRound, task: Task
) -> tuple[SplitRound, Effects]:
    """Send the activations of the windows that a task names; end an unfinished iteration."""
    ids = task.arrays.get("ids")
    if ids is None or ids.ndim != 1 or task.step <= live.last:
        return live, ()
    live = replace(_ended_iteration(local, settings, live), last=task.step)
    is_held = task.values.get("held", 0.0) == 1.0
    here, batch = local.named(ids, held=is_held)
    if not here.any():
        return live, ()
    (h,) = local.run("encode", p=live.p, x=batch.x)
    is_frozen = is_held or task.values.get("frozen", 0.0) == 1.0
    turn = SplitIteration(task.step, ids, here, batch, h, is_frozen)
    signals = _signal(local, live, task, _expanded(h, here))
    return replace(live, turn=turn), signals


def _decoded(local: TrainingContext, live: SplitRound, task: Task) -> tuple[SplitRound, Effects]:
    turn, z = _matching(live, task, "z")
    if turn is None or z is None or turn.g is not None:
        return live, ()
    turn, gz = _decoder_gradient(local, live, turn, z)
    signals = _signal(local, live, task, _expanded(gz, turn.here), {"loss": turn.loss})
    return replace(live, turn=turn), signals if np.isfinite(gz).all() else ()


def _stored(live: SplitRound, task: Task) -> SplitRound:
    turn, z = _matching(live, task, "z")
    if turn is None or z is None:
        return live
    known = {int(number): row for number, row in zip(turn.ids[turn.here], z, strict=True)}
    return replace(live, turn=None, known={**live.known, **known})


def _validated(local: TrainingContext, live: SplitRound, task: Task) -> SplitRound:
    turn, z = _matching(live, task, "z")
    if turn is None or z is None or not turn.frozen:
        return live
    loss = _decoder_gradient(local, live, turn, z)[0].loss
    judged = ((loss, len(turn.batch)),) if math.isfinite(loss) else ()
    return replace(live, turn=None, judged=(*live.judged, *judged))


def _finished(
    local: TrainingContext, settings: LocalSgd, live: SplitRound, task: Task
) -> SplitRound:
    turn, hgrad = _matching(live, task, "hgrad")
    if turn is None:
        return live
    return _after_step(local, settings, live, turn, hgrad if turn.g is not None else None)


def _local_steps(
    local: TrainingContext, settings: LocalSgd, live: SplitRound, task: Task
) -> SplitRound:
    """Take steps on windows with a stored graph output, without a new request."""
    if task.step <= live.last:
        return live
    live = _ended_iteration(local, settings, live)
    numbers = np.array(sorted(live.known), np.int64)
    size = min(int(task.values.get("batch", len(numbers))), len(numbers))
    for k in range(int(task.values.get("steps", 0.0)) if size else 0):
        ids = np.take(numbers, np.arange(k * size, (k + 1) * size), mode="wrap")
        here, batch = local.named(ids)
        if not here.any():
            break
        (h,) = local.run("encode", p=live.p, x=batch.x)
        z = np.stack([live.known[int(number)] for number in ids[here]])
        turn, _ = _decoder_gradient(local, live, SplitIteration(task.step, ids, here, batch, h), z)
        live = _after_step(local, settings, live, turn, None)
    return replace(live, last=max(live.last, task.step))


def _ended_iteration(local: TrainingContext, settings: LocalSgd, live: SplitRound) -> SplitRound:
    """End an unfinished iteration: with the direct path's gradient, or at ``z = 0`` without one."""
    turn = live.turn
    if turn is None:
        return live
    if turn.frozen:
        return replace(live, turn=None)
    return _after_step(local, settings, live, turn, None)


def _decoder_gradient(
    local: TrainingContext, live: SplitRound, turn: SplitIteration, z: Array
) -> tuple[SplitIteration, Array]:
    loss, g, gh, gz = local.run("decode", p=live.p, h=turn.h, z=z, y=turn.batch.y)
    return replace(turn, g=g, gh=gh, loss=float(loss)), gz


def _after_step(
    local: TrainingContext,
    settings: LocalSgd,
    live: SplitRound,
    turn: SplitIteration,
    hgrad: Array | None,
) -> SplitRound:
    if turn.g is None:
        turn, _ = _decoder_gradient(local, live, turn, np.zeros_like(turn.h))
    assert turn.g is not None
    gh = turn.gh if hgrad is None else turn.gh + hgrad
    (ge,) = local.run("encode_vjp", p=live.p, x=turn.batch.x, gh=gh)
    task = live.task
    pull = add_proximal(local.spec, task.values.get("prox", settings.prox), task.arrays["w"])
    optimiser = chain(pull, settings.optimiser_of(task.values))
    p, moments = optimiser_step(optimiser, live.p, turn.g + ge, live.moments)
    losses, used = (*live.losses, turn.loss), live.used + len(turn.batch)
    return replace(live, p=p, moments=moments, turn=None, losses=losses, used=used)


# --- arrays sent and received ----------------------------------------------------------------------


def _matching(
    live: SplitRound, task: Task, name: str
) -> tuple[SplitIteration | None, Array | None]:
    turn = live.turn
    if turn is None or turn.step != task.step:
        return None, None
    array = task.arrays.get(name)
    if array is None or array.shape != (len(turn.ids), *turn.h.shape[1:]):
        return turn, None
    return turn, array[turn.here].astype(turn.h.dtype, copy=False)


def _expanded(rows: Array, here: NDArray[np.bool_]) -> Array:
    """Return an array with a row for every requested window, zero where the device has none.

    >>> _expanded(np.ones((1, 1)), np.array([False, True])).ravel().tolist()
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
    signal = Signal(local.client, task.round, task.ask, task.step, array, values, live.attempt)
    return (signal,)


def _with_graph_output(state: SplitState, task: Task, z: Array) -> SplitState:
    chosen = fleet_choice(state, task.values)
    return chosen if chosen is not state else replace(state, served=(task.step, z[0]))


def _served(local: TrainingContext, state: SplitState) -> Effects:
    newest = local.newest()
    if newest is None:
        return ()
    number, x = newest
    (h,) = local.run("encode", p=state.chosen, x=x)
    return (Signal(local.client, 0, SERVE, number, h),)
