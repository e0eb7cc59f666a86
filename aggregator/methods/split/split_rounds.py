"""Turns of a round of split learning: requests for activations, and passes through the graph.

A pure machine beside ``split``. It is not journalled; at the end of a round one ``Played`` carries
the new graph model. A turn waits for the stations that took part in the turn before, up to its
deadline: a late station is left out of it, gets no gradient, and is waited for again once it sends
in time.

Source: ``algorithms.md`` section 6.4; the alternating schedule is CNFGNN's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.methods.base.server_optim import corrected_adam
from aggregator.methods.split.activation_clipping import (
    LONGEST,
    astray,
    bound,
    clipped_features,
    clipped_gradients,
    longest,
    remembered,
)
from aggregator.methods.split.split_types import (
    Ids,
    RoundView,
    ServingSettings,
    SplitBinding,
    SplitPlay,
    SplitTurns,
)
from edge_sdk.shared_math.optim import optimiser_step
from edge_sdk.wire.contract.method import (
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

__all__ = ["KNOWN", "SplitBinding", "SplitPlay", "SplitTurns", "drawn", "play"]

KNOWN = 4096
"""Largest number of single windows whose activations a round keeps for later turns."""


def play(score: SplitBinding) -> Play[Any]:
    """Return the machine of a run."""

    def apply(act: SplitPlay, event: Event) -> tuple[SplitPlay, Effects]:
        match event:
            case Signal(ask="serve"):
                return _asked_to_serve(act, score, event)
            case Signal():
                return _heard(act, score, event)
            case Member(client=client, present=present):
                return _met(act, client, present=present)
            case Due():
                return _due(act, score, event)
        return act, ()

    return Play(opened, apply, wants(score), lambda act, half: replace(act, slots=half.slots))


def _due(act: SplitPlay, score: SplitBinding, due: Due) -> tuple[SplitPlay, Effects]:
    if due.ask == "serve":
        return _serve(act, score)
    if due.ask == "begin":
        return _begin(act, score)
    is_now = (due.round, due.ask, due.step) == (act.round, act.phase, max(act.step, 0))
    return _late(act, score) if is_now else (act, ())


def opened(state: RoundView, before: SplitPlay | None) -> SplitPlay:
    """Begin with the state of the half; forecasts on demand continue."""
    phase = "idle"
    if state.round and state.is_open:
        phase = "share" if state.settled >= state.round else "ready"
    return SplitPlay(
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
        here=frozenset(state.here),
        served=state.chosen.get("p"),
        kept=state.kept,
        serving=before.serving if before is not None else ServingSettings(),
    )


def wants(score: SplitBinding) -> Any:  # noqa: ANN401 - the shape of Play.wants
    """Return the predicate that accepts a signal by its turn, its sender and its shape."""
    features = score.shape

    def judge(act: SplitPlay, said: Signal, shape: tuple[int, ...]) -> bool:
        if said.sender not in act.slots:
            return False
        if said.ask == "serve":
            return said.round == 0 and shape == (1, *features)
        if said.round != act.round or said.sender in act.heard:
            return False
        if said.ask == "ready":
            return said.attempt <= act.attempt and not shape
        if (said.attempt, said.step) != (act.attempt, act.step):
            return False
        if said.ask == act.phase == "decode":
            is_awaited = said.sender in act.took
        else:  # a late signal shows at least that its station is back
            is_awaited = said.ask == "encode" and said.sender not in act.took
        return is_awaited and shape == (len(act.ids), *features)

    return judge


# --- participation --------------------------------------------------------------------------------


def _begin(act: SplitPlay, score: SplitBinding) -> tuple[SplitPlay, Effects]:
    """Ask which stations are ready, or, when the turns are over, for the round's update."""
    if act.phase == "idle":
        return act, ()
    due = Due(act.round, act.phase, 0, after=score.turns.deadline)
    return replace(act, step=-1), (*_said(act, act.here, act.phase), due)


def _met(act: SplitPlay, client: str, *, present: bool) -> tuple[SplitPlay, Effects]:
    here = act.here | {client} if present else act.here - {client}
    act = replace(act, here=here, cast=act.cast if present else act.cast - {client})
    asks = "share" if act.phase == "share" else "ready"
    is_asked = present and act.phase != "idle"
    return act, _said(act, [client], asks) if is_asked else ()


def _said(act: SplitPlay, clients: Iterable[str], ask: str) -> Effects:
    return tuple(
        Task(name, act.round, ask, attempt=act.attempt)
        for name in sorted(set(clients) & set(act.slots))
    )


def _heard(act: SplitPlay, score: SplitBinding, said: Signal) -> tuple[SplitPlay, Effects]:
    if said.ask == "ready":
        return _ready(act, score, said)
    if said.ask != act.phase:  # activations after their turn: waited for again from the next on
        return replace(act, joining=act.joining | {said.sender}), ()
    act = replace(act, heard={**act.heard, said.sender: said}, cast=act.cast | {said.sender})
    awaited = act.cast if act.phase == "encode" else act.took & act.cast
    if not awaited <= act.heard.keys():
        return act, ()
    return _forward(act, score) if act.phase == "encode" else _backward(act, score)


def _ready(act: SplitPlay, score: SplitBinding, said: Signal) -> tuple[SplitPlay, Effects]:
    """Admit a station: at once where the round has not begun, else from the next turn on."""
    spans = {"spans": said_span(said, ""), "held": said_span(said, "held_")}
    if act.phase == "share" or spans["spans"] is None:
        return act, ()
    note = f"ready {said.sender} {max(act.step, -1)}"
    act = replace(
        act,
        spans={**act.spans, said.sender: spans["spans"]},
        held=act.held if spans["held"] is None else {**act.held, said.sender: spans["held"]},
        joining=act.joining | {said.sender},
        record=(*act.record, note) if act.phase != "ready" else act.record,
    )
    if act.phase != "ready":
        return act, ()
    everybody = act.here & act.slots.keys()
    is_full = len(act.spans) >= score.quorum and everybody <= act.spans.keys()
    return _turn(act, score) if is_full else (act, ())


def said_span(said: Signal, before: str) -> tuple[int, int] | None:
    """Return the first and last window that a station reports; None if it names none.

    >>> said_span(Signal("a", 1, "ready", 0, np.zeros(0), {"first": 3.0, "last": 7.0}), "")
    (3, 7)
    >>> said_span(Signal("a", 1, "ready", 0, np.zeros(0), {"first": 7.0, "last": 3.0}), "")
    """
    if not {f"{before}first", f"{before}last"} <= said.values.keys():
        return None
    first, last = (int(said.values[f"{before}{end}"]) for end in ("first", "last"))
    return (first, last) if first <= last else None


def _late(act: SplitPlay, score: SplitBinding) -> tuple[SplitPlay, Effects]:
    """Continue without the late stations."""
    if act.phase == "share":
        return _begin(act, score)
    if act.phase == "ready":
        if len(act.spans) < max(1, score.enough):
            return _begin(act, score)
        return _turn(act, score)
    act = replace(act, cast=frozenset(act.heard))
    if act.phase == "decode":
        return _backward(act, score)
    if act.heard:
        return _forward(act, score)
    return _turn(replace(act, joining=act.here & act.spans.keys()), score)


# --- turns ----------------------------------------------------------------------------------------


def _turn(act: SplitPlay, score: SplitBinding) -> tuple[SplitPlay, Effects]:
    """Request the activations of one batch, or end the round."""
    program = score.program
    if act.at >= len(program) or (program[act.at] == "judge" and not act.held):
        return _played(act)
    what, step = program[act.at], act.step + 1
    if what == "local":
        told = {"steps": float(score.steps), "batch": float(score.turns.batch)}
        act = replace(act, step=step, at=act.at + 1)
        local = _each(act, act.spans, "local", values=told)
        act, effects = _turn(act, score)
        return act, (*local, *effects)
    asked_of = act.held if what == "judge" else act.spans
    cast = (act.cast | act.joining) & act.here & asked_of.keys()
    act = replace(act, phase="encode", step=step, heard={}, took=frozenset())
    act = replace(act, cast=cast, joining=frozenset())
    act = replace(act, ids=drawn(act, score))
    flags = {"joint": {}, "judge": {"held": 1.0}}.get(what, {"frozen": 1.0})
    asked = _each(act, asked_of, "encode", values=_numbers(score) | flags, ids=act.ids)
    return act, (*asked, Due(act.round, "encode", step, after=score.turns.deadline))


def drawn(act: SplitPlay, score: SplitBinding) -> Ids:
    """Draw the numbers of a turn's windows, the same in every attempt.

    They lie between the medians of the stations' first and last windows, which most stations have
    and a minority cannot move. For judging, every round draws the same numbers until new readings
    arrive.
    """
    is_judged = score.program[act.at] == "judge"
    spans = act.held if is_judged else act.spans
    first, last = (int(np.median(ends)) for ends in zip(*spans.values(), strict=True))
    first, last = min(first, last), max(first, last)
    if is_judged:
        rng = keyed("held", score.seed, act.at - score.program.index("judge"))
    else:
        rng = keyed("windows", score.seed, act.round, act.at)
    size = min(score.turns.batch, last - first + 1)
    return np.sort(first + rng.choice(last - first + 1, size, replace=False)).astype(np.int32)


def keyed(purpose: str, *numbers: int) -> np.random.Generator:
    """Return a generator for these numbers: every attempt, and every restart, draws the same."""
    said = "\0".join((f"gridfed/1/{purpose}", *map(str, numbers)))
    key = int.from_bytes(hashlib.sha256(said.encode()).digest()[:16], "big")
    return np.random.Generator(np.random.Philox(key=key))


def silenced(act: SplitPlay, score: SplitBinding) -> NDArray[np.bool_]:
    """Draw the mask of windows whose ``z`` is withheld from each station, ``(B, N)``.

    Only for stations that train in the turn; the same in every attempt.
    """
    shape = len(act.ids), score.graph.capacity
    if not score.turns.z_dropout or score.program[act.at] not in ("joint", "refresh"):
        return np.zeros(shape, np.bool_)
    chances = keyed("silence", score.seed, act.round, act.at).random(shape)
    found: NDArray[np.bool_] = chances < score.turns.z_dropout
    return found


def _forward(act: SplitPlay, score: SplitBinding) -> tuple[SplitPlay, Effects]:
    """Send each station the graph's output for all activations."""
    what = score.program[act.at]
    if act.phase == "encode":
        act = _within_range(act, score, "h")
    took = frozenset(act.heard)
    h = _filled(act, score)
    act = act if what == "judge" else _remembered(act)
    h, factors = clipped_features(h, _at(act, score, took - act.masked), score.turns.most)
    z = score.graph.forward(act.p, h, _present(act, score))
    z[silenced(act, score)] = 0.0
    ask = {"refresh": "keep", "judge": "judge"}.get(what, "decode")
    act = _noted(act, "encode" if ask == "decode" else ask, took)
    act = replace(act, h=h, factors=factors, took=took, heard={})
    told = tuple(
        Task(
            name,
            act.round,
            ask,
            step=act.step,
            attempt=act.attempt,
            values=_numbers(score),
            arrays={"z": z[:, act.slots[name]]},
        )
        for name in sorted(took)
    )
    if ask != "decode":
        act, effects = _turn(replace(act, at=act.at + 1), score)
        return act, (*told, *effects)
    due = Due(act.round, "decode", act.step, after=score.turns.deadline)
    return replace(act, phase="decode"), (*told, due)


def _backward(act: SplitPlay, score: SplitBinding) -> tuple[SplitPlay, Effects]:
    """Step the graph, and send each participating station the gradient of its activations."""
    act = replace(act, cast=act.cast - (act.took - act.heard.keys()))
    act = _within_range(act, score, "g")
    answered = sorted(act.heard)
    act = _noted(act, "decode", answered)
    gz = np.zeros(act.h.shape, act.h.dtype)
    for name in answered:
        if name not in act.masked:
            gz[:, act.slots[name]] = act.heard[name].array
    gz[silenced(act, score)] = 0.0
    gz = clipped_gradients(gz, _at(act, score, set(answered) - act.masked), score.turns.most)
    gh, gp = score.graph.pullback(act.p, act.h, _present(act, score), gz)
    if score.turns.own_loss_only:
        gh = _own(act, score, gz)
    gh = gh * act.factors[:, :, None, None].astype(gh.dtype)
    if answered and np.isfinite(gp).all():
        p, memory = optimiser_step(corrected_adam(score.turns.rate), act.p, gp, act.memory)
        act = replace(act, p=p, memory=memory)
    losses = [act.heard[n].values["loss"] for n in answered if "loss" in act.heard[n].values]
    act = replace(act, losses=(*act.losses, *([float(np.mean(losses))] if losses else [])))
    is_joint = score.program[act.at] == "joint"
    finish = _finish(act, score, gh) if is_joint else ()
    act, effects = _turn(replace(act, at=act.at + 1), score)
    return act, (*finish, *effects)


def _within_range(act: SplitPlay, score: SplitBinding, of: str) -> SplitPlay:
    """Treat stations out of the range of their past as late in this phase.

    Args:
        act: State in the phase whose signals are here.
        score: Settings, with the guard.
        of: ``h`` for activations, ``g`` for gradients.
    """
    if not np.isfinite(score.turns.most):
        return act
    judged = sorted(act.heard.keys() - act.masked)  # a masked station's signal is not used
    lengths = {name: longest(np.asarray(act.heard[name].array)) for name in judged}
    out = astray(lengths, act.past.get(of, {}))
    past = {**act.past, of: remembered(act.past.get(of, {}), lengths, out)}
    act = replace(act, past=past)
    if not out:
        return act
    counts = {**act.astray, **{name: act.astray.get(name, 0) + 1 for name in sorted(out)}}
    heard = {name: said for name, said in act.heard.items() if name not in out}
    return _noted(replace(act, astray=counts, heard=heard), f"astray-{of}", out)


def _noted(act: SplitPlay, phase: str, names: Iterable[str]) -> SplitPlay:
    """Record the participants of a phase, if they differ from the last time."""
    said = f"{phase} {' '.join(sorted(names))}"
    of_phase = [one.partition(" ")[2] for one in act.record if one.split(" ")[1] == phase]
    if of_phase and of_phase[-1] == said:
        return act
    return replace(act, record=(*act.record, f"{act.step} {said}"))


def _finish(act: SplitPlay, score: SplitBinding, gh: Array) -> Effects:
    """Return the end of an iteration: without a gradient where none arrived, or none is finite."""
    told = []
    for name in sorted(act.took):
        mine = gh[:, act.slots[name]]
        arrays = {"hgrad": mine} if name in act.heard and np.isfinite(mine).all() else {}
        values = _numbers(score) if arrays else {}
        told.append(
            Task(
                name,
                act.round,
                "finish",
                step=act.step,
                attempt=act.attempt,
                values=values,
                arrays=arrays,
            )
        )
    return tuple(told)


def _own(act: SplitPlay, score: SplitBinding, gz: Array) -> Array:
    """Return the gradient of each station's own loss only."""
    gh, present = np.zeros_like(act.h), _present(act, score)
    for name in sorted(act.heard):
        at = act.slots[name]
        alone = np.zeros_like(gz)
        alone[:, at] = gz[:, at]
        gh[:, at] = score.graph.pullback(act.p, act.h, present, alone)[0][:, at]
    return gh


def _played(act: SplitPlay) -> tuple[SplitPlay, Effects]:
    """Return the result of the round; the half journals it."""
    arrays = {"p": act.p, "first": act.memory["first"], "second": act.memory["second"]}
    arrays |= {f"mean.{name}": mean for name, mean in sorted(act.means.items())}
    values = {"taken": float(act.memory["taken"])}
    for of, lengths in sorted(act.past.items()):
        values |= {f"{of}.{name}": length for name, length in sorted(lengths.items())}
    values |= {f"astray.{name}": float(n) for name, n in sorted(act.astray.items())}
    if act.losses:
        values["loss"] = float(np.mean(act.losses))
    record = "\n".join(act.record)
    return replace(act, phase="idle"), (Played(act.round, act.attempt, arrays, values, record),)


# --- arrays ---------------------------------------------------------------------------------------


def _filled(act: SplitPlay, score: SplitBinding) -> Array:
    """Combine all activations: of late stations the last known of each window, else zeros."""
    shape = (len(act.ids), score.graph.capacity, *score.shape)
    kinds = [np.asarray(said.array).dtype for said in act.heard.values()]
    h = np.zeros(shape, np.result_type(act.p.dtype, *kinds))
    for name, at in act.slots.items():
        if name in act.masked:
            h[:, at] = act.means.get(name, 0.0)
        elif name in act.heard:
            h[:, at] = act.heard[name].array
        elif name in act.spans:
            for b, number in enumerate(act.ids):
                h[b, at] = act.known.get((name, int(number)), 0.0)
    return h


def _remembered(act: SplitPlay) -> SplitPlay:
    """Keep the newest activations of single windows, and the mean of each accepted station's."""
    known, means = dict(act.known), dict(act.means)
    for name in sorted(act.heard.keys() - act.masked):
        rows = np.asarray(act.heard[name].array)
        means[name] = rows.mean(0).astype(np.float32)
        for number, row in zip(act.ids, rows, strict=True):
            known.pop((name, int(number)), None)
            known[name, int(number)] = row
    for key in list(known)[: max(0, len(known) - KNOWN)]:
        del known[key]
    return replace(act, known=known, means=means)


def _present(act: SplitPlay, score: SplitBinding) -> NDArray[np.bool_]:
    return _at(act, score, act.spans)


def _at(act: SplitPlay, score: SplitBinding, names: Iterable[str]) -> NDArray[np.bool_]:
    out = np.zeros(score.graph.capacity, np.bool_)
    out[[act.slots[name] for name in names]] = True
    return out


def _each(
    act: SplitPlay, names: Iterable[str], ask: str, *, values: Mapping[str, float], **arrays: Array
) -> Effects:
    return tuple(
        Task(
            name,
            act.round,
            ask,
            step=act.step,
            attempt=act.attempt,
            values=values,
            arrays=arrays,
        )
        for name in sorted(names)
    )


def _numbers(score: SplitBinding) -> dict[str, float]:
    return {"half": 1.0} if score.turns.float16 else {}


# --- forecasts ------------------------------------------------------------------------------------


def _asked_to_serve(act: SplitPlay, score: SplitBinding, said: Signal) -> tuple[SplitPlay, Effects]:
    before = act.serving
    serving = ServingSettings(
        {**before.latest, said.sender: (said.step, said.array[0])},
        {**before.asking, said.sender: said.step},
    )
    effects = () if before.asking else (Due(0, "serve", 0, after=score.turns.gather),)
    return replace(act, serving=serving), effects


def _served_within_range(
    act: SplitPlay, score: SplitBinding, of: Mapping[str, Array]
) -> dict[str, Array]:
    """Return the activations of stations within the range of their past, or masked."""
    if not np.isfinite(score.turns.most):
        return dict(of)
    lengths = {n: longest(np.asarray(h)[None]) for n, h in of.items() if n not in act.masked}
    past = act.past.get("h", {})
    out = {n for n, length in lengths.items() if not length <= min(bound(n, past), LONGEST)}
    return {name: h for name, h in of.items() if name not in out}


def _serve(act: SplitPlay, score: SplitBinding) -> tuple[SplitPlay, Effects]:
    """Send all waiting stations a forecast from their neighbours' newest activations of that time.

    A masked station's activations are its mean here too: what it sends affects no other forecast.
    """
    asking, told = act.serving.asking, []
    for number in sorted(set(asking.values())):
        of = {n: h for n, (at, h) in act.serving.latest.items() if at == number and n in act.slots}
        of = _served_within_range(act, score, of)
        h = np.zeros((1, score.graph.capacity, *score.shape), act.p.dtype)
        for name, row in of.items():
            is_masked = name in act.masked
            h[0, act.slots[name]] = act.means.get(name, 0.0) if is_masked else row
        h, _ = clipped_features(h, _at(act, score, of.keys() - act.masked), score.turns.most)
        p = act.p if act.served is None else act.served
        z = score.graph.forward(p, h, _at(act, score, of))
        told += [
            Task(
                name,
                0,
                "serve",
                step=number,
                values=_numbers(score) | ({"kept": float(act.kept)} if act.kept else {}),
                arrays={"z": z[:, act.slots[name]]},
            )
            for name, at in sorted(asking.items())
            if at == number and name in of
        ]
    return replace(act, serving=replace(act.serving, asking={})), tuple(told)
