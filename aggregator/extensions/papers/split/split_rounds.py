"""Turns of a round of split learning: requests for activations, and passes through the graph.

A pure machine beside ``split``. It is not journalled; at the end of a round one ``Played`` carries
the new graph model. A turn waits for the stations that took part in the turn before, up to its
deadline: a late station is left out of it, gets no gradient, and is waited for again once it sends
in time.

Source: ``algorithms.md`` section 6.4; the alternating schedule is CNFGNN's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from aggregator.extensions.papers.split import split_forecasts
from aggregator.extensions.papers.split.activation_clipping import (
    astray,
    clipped_features,
    clipped_gradients,
    longest,
    remembered,
)
from aggregator.extensions.papers.split.split_arrays import (
    drawn,
    filled,
    marked,
    numbers,
    participants,
    remembered_activations,
    silenced,
)
from aggregator.extensions.papers.split.split_types import (
    ForecastRequests,
    RoundView,
    SplitBinding,
    SplitRoundState,
    corrected_adam,
)
from edge_sdk.protocol.contract.method import (
    Array,
    Due,
    Effects,
    Event,
    Member,
    Play,
    Played,
    Signal,
    Task,
)
from edge_sdk.shared_math.optim import optimiser_step


def play(binding: SplitBinding) -> Play[Any]:
    """Return the machine of a run."""

    def apply(state: SplitRoundState, event: Event) -> tuple[SplitRoundState, Effects]:
        match event:
            case Signal(ask="serve"):
                return split_forecasts.queued(state, binding, event)
            case Signal():
                return _received(state, binding, event)
            case Member(client=client, present=present):
                return _met(state, client, present=present)
            case Due():
                return _due(state, binding, event)
        return state, ()

    return Play(opened, apply, wants(binding), lambda state, half: replace(state, slots=half.slots))


def _due(
    state: SplitRoundState, binding: SplitBinding, due: Due
) -> tuple[SplitRoundState, Effects]:
    if due.ask == "serve":
        return split_forecasts.sent(state, binding)
    if due.ask == "begin":
        return _begin(state, binding)
    is_now = (due.round, due.ask, due.step) == (state.round, state.phase, max(state.step, 0))
    return _late(state, binding) if is_now else (state, ())


def opened(state: RoundView, before: SplitRoundState | None) -> SplitRoundState:
    """Begin with the state of the half; forecasts on demand continue."""
    phase = "idle"
    if state.round and state.is_open:
        phase = "share" if state.settled >= state.round else "ready"
    return SplitRoundState(
        state.round,
        state.attempt,
        phase,
        state.net["p"],
        {
            "taken": np.array(state.taken),
            "first": state.net["first"],
            "second": state.net["second"],
        },
        state.slots,
        frozenset(name for name, is_masked in state.masked.items() if is_masked),
        state.means,
        {of: {n: one[of] for n, one in state.past.items() if of in one} for of in ("h", "g")},
        linked=frozenset(state.linked),
        served=state.chosen.get("p"),
        kept=state.kept,
        serving=before.serving if before is not None else ForecastRequests(),
    )


def wants(binding: SplitBinding) -> Any:  # noqa: ANN401 - the shape of Play.wants
    """Return the predicate that accepts a signal by its turn, its sender and its shape."""
    features = binding.shape

    def judge(state: SplitRoundState, signal: Signal, shape: tuple[int, ...]) -> bool:
        if signal.sender not in state.slots:
            return False
        if signal.ask == "serve":
            return signal.round == 0 and shape == (1, *features)
        if signal.round != state.round or signal.sender in state.received:
            return False
        if signal.ask == "ready":
            return signal.attempt <= state.attempt and not shape
        if (signal.attempt, signal.step) != (state.attempt, state.step):
            return False
        if signal.ask == state.phase == "decode":
            is_awaited = signal.sender in state.participants
        else:  # a late signal shows at least that its station is back
            is_awaited = signal.ask == "encode" and signal.sender not in state.participants
        return is_awaited and shape == (len(state.ids), *features)

    return judge


# --- participation --------------------------------------------------------------------------------


def _begin(state: SplitRoundState, binding: SplitBinding) -> tuple[SplitRoundState, Effects]:
    if state.phase == "idle":
        return state, ()
    due = Due(state.round, state.phase, 0, after=binding.turns.deadline)
    return replace(state, step=-1), (*_message(state, state.linked, state.phase), due)


def _met(state: SplitRoundState, client: str, *, present: bool) -> tuple[SplitRoundState, Effects]:
    linked = state.linked | {client} if present else state.linked - {client}
    state = replace(
        state, linked=linked, awaited=state.awaited if present else state.awaited - {client}
    )
    asks = "share" if state.phase == "share" else "ready"
    is_asked = present and state.phase != "idle"
    return state, _message(state, [client], asks) if is_asked else ()


def _message(state: SplitRoundState, clients: Iterable[str], ask: str) -> Effects:
    return tuple(
        Task(name, state.round, ask, attempt=state.attempt)
        for name in sorted(set(clients) & set(state.slots))
    )


def _received(
    state: SplitRoundState, binding: SplitBinding, signal: Signal
) -> tuple[SplitRoundState, Effects]:
    if signal.ask == "ready":
        return _ready(state, binding, signal)
    if signal.ask != state.phase:  # activations after their turn: waited for again from the next on
        return replace(state, joining=state.joining | {signal.sender}), ()
    state = replace(
        state,
        received={**state.received, signal.sender: signal},
        awaited=state.awaited | {signal.sender},
    )
    awaited = state.awaited if state.phase == "encode" else state.participants & state.awaited
    if not awaited <= state.received.keys():
        return state, ()
    return _forward(state, binding) if state.phase == "encode" else _backward(state, binding)


def _ready(
    state: SplitRoundState, binding: SplitBinding, signal: Signal
) -> tuple[SplitRoundState, Effects]:
    """Admit a station: at once where the round has not begun, else from the next turn on."""
    spans = {"spans": reported_span(signal, ""), "held": reported_span(signal, "held_")}
    if state.phase == "share" or spans["spans"] is None:
        return state, ()
    note = f"ready {signal.sender} {max(state.step, -1)}"
    state = replace(
        state,
        spans={**state.spans, signal.sender: spans["spans"]},
        held=state.held if spans["held"] is None else {**state.held, signal.sender: spans["held"]},
        joining=state.joining | {signal.sender},
        record=(*state.record, note) if state.phase != "ready" else state.record,
    )
    if state.phase != "ready":
        return state, ()
    linked = state.linked & state.slots.keys()
    is_full = len(state.spans) >= binding.quorum and linked <= state.spans.keys()
    return _turn(state, binding) if is_full else (state, ())


def reported_span(signal: Signal, before: str) -> tuple[int, int] | None:
    """Return the first and last window that a station reports; None if it names none.

    >>> reported_span(Signal("a", 1, "ready", 0, np.zeros(0), {"first": 3.0, "last": 7.0}), "")
    (3, 7)
    >>> reported_span(Signal("a", 1, "ready", 0, np.zeros(0), {"first": 7.0, "last": 3.0}), "")
    """
    if not {f"{before}first", f"{before}last"} <= signal.values.keys():
        return None
    first, last = (int(signal.values[f"{before}{end}"]) for end in ("first", "last"))
    return (first, last) if first <= last else None


def _late(state: SplitRoundState, binding: SplitBinding) -> tuple[SplitRoundState, Effects]:
    if state.phase == "share":
        return _begin(state, binding)
    if state.phase == "ready":
        if len(state.spans) < max(1, binding.enough):
            return _begin(state, binding)
        return _turn(state, binding)
    state = replace(state, awaited=frozenset(state.received))
    if state.phase == "decode":
        return _backward(state, binding)
    if state.received:
        return _forward(state, binding)
    return _turn(replace(state, joining=state.linked & state.spans.keys()), binding)


# --- turns ----------------------------------------------------------------------------------------


def _turn(state: SplitRoundState, binding: SplitBinding) -> tuple[SplitRoundState, Effects]:
    program = binding.program
    if state.at >= len(program) or (program[state.at] == "judge" and not state.held):
        return _played(state)
    what, step = program[state.at], state.step + 1
    if what == "local":
        values = {"steps": float(binding.steps), "batch": float(binding.turns.batch)}
        state = replace(state, step=step, at=state.at + 1)
        local = _each(state, state.spans, "local", values=values)
        state, effects = _turn(state, binding)
        return state, (*local, *effects)
    asked_of = state.held if what == "judge" else state.spans
    awaited = (state.awaited | state.joining) & state.linked & asked_of.keys()
    state = replace(state, phase="encode", step=step, received={}, participants=frozenset())
    state = replace(state, awaited=awaited, joining=frozenset())
    state = replace(state, ids=drawn(state, binding))
    flags = {"joint": {}, "judge": {"held": 1.0}}.get(what, {"frozen": 1.0})
    asked = _each(state, asked_of, "encode", values=numbers(binding) | flags, ids=state.ids)
    return state, (*asked, Due(state.round, "encode", step, after=binding.turns.deadline))


def _forward(state: SplitRoundState, binding: SplitBinding) -> tuple[SplitRoundState, Effects]:
    what = binding.program[state.at]
    if state.phase == "encode":
        state = _within_range(state, binding, "h")
    senders = frozenset(state.received)
    h = filled(state, binding)
    state = state if what == "judge" else remembered_activations(state)
    h, factors = clipped_features(
        h, marked(state, binding, senders - state.masked), binding.turns.most
    )
    z = binding.graph.forward(state.p, h, participants(state, binding))
    z[silenced(state, binding)] = 0.0
    ask = {"refresh": "keep", "judge": "judge"}.get(what, "decode")
    state = _noted(state, "encode" if ask == "decode" else ask, senders)
    state = replace(state, h=h, factors=factors, participants=senders, received={})
    tasks = tuple(
        Task(
            name,
            state.round,
            ask,
            step=state.step,
            attempt=state.attempt,
            values=numbers(binding),
            arrays={"z": z[:, state.slots[name]]},
        )
        for name in sorted(senders)
    )
    if ask != "decode":
        state, effects = _turn(replace(state, at=state.at + 1), binding)
        return state, (*tasks, *effects)
    due = Due(state.round, "decode", state.step, after=binding.turns.deadline)
    return replace(state, phase="decode"), (*tasks, due)


def _backward(state: SplitRoundState, binding: SplitBinding) -> tuple[SplitRoundState, Effects]:
    state = replace(state, awaited=state.awaited - (state.participants - state.received.keys()))
    state = _within_range(state, binding, "g")
    answered = sorted(state.received)
    state = _noted(state, "decode", answered)
    gz = np.zeros(state.h.shape, state.h.dtype)
    for name in answered:
        if name not in state.masked:
            gz[:, state.slots[name]] = state.received[name].array
    gz[silenced(state, binding)] = 0.0
    gz = clipped_gradients(
        gz, marked(state, binding, set(answered) - state.masked), binding.turns.most
    )
    gh, gp = binding.graph.pullback(state.p, state.h, participants(state, binding), gz)
    if binding.turns.own_loss_only:
        gh = _own(state, binding, gz)
    gh = gh * state.factors[:, :, None, None].astype(gh.dtype)
    if answered and np.isfinite(gp).all():
        p, memory = optimiser_step(corrected_adam(binding.turns.rate), state.p, gp, state.memory)
        state = replace(state, p=p, memory=memory)
    losses = [
        state.received[n].values["loss"] for n in answered if "loss" in state.received[n].values
    ]
    state = replace(state, losses=(*state.losses, *([float(np.mean(losses))] if losses else [])))
    is_joint = binding.program[state.at] == "joint"
    finish = _finish(state, binding, gh) if is_joint else ()
    state, effects = _turn(replace(state, at=state.at + 1), binding)
    return state, (*finish, *effects)


def _within_range(state: SplitRoundState, binding: SplitBinding, of: str) -> SplitRoundState:
    if not np.isfinite(binding.turns.most):
        return state
    judged = sorted(state.received.keys() - state.masked)  # a masked station's signal is not used
    lengths = {name: longest(np.asarray(state.received[name].array)) for name in judged}
    out = astray(lengths, state.past.get(of, {}))
    past = {**state.past, of: remembered(state.past.get(of, {}), lengths, out)}
    state = replace(state, past=past)
    if not out:
        return state
    counts = {**state.astray, **{name: state.astray.get(name, 0) + 1 for name in sorted(out)}}
    received = {name: signal for name, signal in state.received.items() if name not in out}
    return _noted(replace(state, astray=counts, received=received), f"astray-{of}", out)


def _noted(state: SplitRoundState, phase: str, names: Iterable[str]) -> SplitRoundState:
    record = f"{phase} {' '.join(sorted(names))}"
    of_phase = [one.partition(" ")[2] for one in state.record if one.split(" ")[1] == phase]
    if of_phase and of_phase[-1] == record:
        return state
    return replace(state, record=(*state.record, f"{state.step} {record}"))


def _finish(state: SplitRoundState, binding: SplitBinding, gh: Array) -> Effects:
    """Return the end of an iteration: without a gradient where none arrived, or none is finite."""
    tasks = []
    for name in sorted(state.participants):
        gradient = gh[:, state.slots[name]]
        arrays = (
            {"hgrad": gradient} if name in state.received and np.isfinite(gradient).all() else {}
        )
        values = numbers(binding) if arrays else {}
        tasks.append(
            Task(
                name,
                state.round,
                "finish",
                step=state.step,
                attempt=state.attempt,
                values=values,
                arrays=arrays,
            )
        )
    return tuple(tasks)


def _own(state: SplitRoundState, binding: SplitBinding, gz: Array) -> Array:
    gh, present = np.zeros_like(state.h), participants(state, binding)
    for name in sorted(state.received):
        at = state.slots[name]
        alone = np.zeros_like(gz)
        alone[:, at] = gz[:, at]
        gh[:, at] = binding.graph.pullback(state.p, state.h, present, alone)[0][:, at]
    return gh


def _played(state: SplitRoundState) -> tuple[SplitRoundState, Effects]:
    """Return the result of the round; the half journals it."""
    arrays = {"p": state.p, "first": state.memory["first"], "second": state.memory["second"]}
    arrays |= {f"mean.{name}": mean for name, mean in sorted(state.means.items())}
    values = {"taken": float(state.memory["taken"])}
    for of, lengths in sorted(state.past.items()):
        values |= {f"{of}.{name}": length for name, length in sorted(lengths.items())}
    values |= {f"astray.{name}": float(n) for name, n in sorted(state.astray.items())}
    if state.losses:
        values["loss"] = float(np.mean(state.losses))
    record = "\n".join(state.record)
    return replace(state, phase="idle"), (
        Played(state.round, state.attempt, arrays, values, record),
    )


def _each(
    state: SplitRoundState,
    names: Iterable[str],
    ask: str,
    *,
    values: Mapping[str, float],
    **arrays: Array,
) -> Effects:
    return tuple(
        Task(
            name,
            state.round,
            ask,
            step=state.step,
            attempt=state.attempt,
            values=values,
            arrays=arrays,
        )
        for name in sorted(names)
    )
