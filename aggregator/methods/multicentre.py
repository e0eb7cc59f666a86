"""Several models instead of one: each client gets the centre of the cluster that it belongs to.

The first round is one local pass from the common first model; its answers seed the centres. From
then on a round is: every client's newest weights go to the nearest centre (E-step), every centre to
what a rule makes of its members (M-step), and who answered gets its centre and a new task. A client
that is silent counts with its last weights for some rounds. Nobody is waited for beyond the quorum.

Clusters have numbers and no meaning: which number a group of clients has is an accident of seeding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.methods.averaging import ASK, published
from aggregator.methods.gathering import Calling
from aggregator.methods.sorting import Centres, Clustering, Fit, fitted, report_of
from aggregator.rules import Rule
from edge_sdk.wire.method import Closed, Due, Effects, Event, Half, Member, Task, Update
from edge_sdk.wire.spec import Vector

_LARGEST = float(np.finfo(np.float32).max)


def multicentre(rule: Rule, settings: Clustering) -> Half[Centres]:
    """Return the server half.

    Events: ``OPEN`` begins; a ``Member`` who came gets its centre, unless its answer waits; an
    ``Update`` is a client's answer, of which the newest counts; the ``Due`` of a round is its
    deadline, at which fewer are enough, or all wait as long again.
    """

    def apply(state: Centres, event: Event) -> tuple[Centres, Effects]:
        match event:
            case Due(ask="open") if state.round == 0:
                state = replace(state, round=1, is_open=True)
                return state, _asking(state, settings, state.who.present)
            case Member(client=client, present=True):
                return _came(state, settings, client)
            case Member(client=client) if state.who.present.get(client, False):
                return replace(state, who=state.who.went(client)), ()
            case Update() if state.is_open and _is_news(state, event):
                state = _heard(state, event)
                full = state.waiting >= settings.rounds.quorum
                return _closed(state, rule, settings) if full else (state, ())
            case Due(round=number, ask="train") if state.is_open and number == state.round:
                enough = state.waiting >= settings.rounds.enough
                return (
                    _closed(state, rule, settings) if enough else (state, (_due(state, settings),))
                )
        return state, ()

    def init(w: Vector) -> Centres:
        first = np.asarray(w, np.float64).copy()
        placed = np.repeat(first[None], settings.count, axis=0)
        empty = np.zeros(settings.count, np.int64)
        seeded = not settings.seeding
        return Centres(0, 0, False, first, placed, empty, seeded, settings.seed)

    return Half(init, apply, model=lambda state: {"p": published(state.w)})


# --- what is asked --------------------------------------------------------------------------------


def _came(state: Centres, settings: Clustering, client: str) -> tuple[Centres, Effects]:
    who = state.who
    if client not in who.told:
        state = replace(state, who=who.came(client, state.version))
    elif not who.present[client]:
        state = replace(state, who=replace(who, present={**who.present, client: True}))
    if client in who.arrived or not state.is_open:
        return state, ()
    return state, _tasks(state, settings, [client])


def _asking(state: Centres, settings: Clustering, clients: Iterable[str]) -> Effects:
    return (*_tasks(state, settings, clients), _due(state, settings))


def _tasks(state: Centres, settings: Clustering, clients: Iterable[str]) -> Effects:
    """Ask clients to step from their centres; those of one cluster share one array."""
    starts: dict[int | None, Vector] = {}
    values = settings.values if state.version else settings.first
    tasks = []
    for name in sorted(clients):
        label = state.labels.get(name)
        if label not in starts:
            starts[label] = published(_start(state, settings, label))
        arrays = {"w": starts[label]}
        task = Task(name, state.round, ASK, base=state.version, values=values, arrays=arrays)
        tasks.append(task)
    return tuple(tasks)


def _start(state: Centres, settings: Clustering, label: int | None) -> NDArray[np.float64]:
    """Return a cluster's centre, or what a client that belongs to none begins with."""
    if label is None and settings.newcomer == "largest" and state.version:
        label = int(max(state.clusters, key=lambda one: len(state.clusters[one])))
    return state.w if label is None else state.centres[label]


def _due(state: Centres, settings: Clustering) -> Due:
    return Due(state.round, ASK, after=settings.rounds.deadline)


# --- what is heard --------------------------------------------------------------------------------


def _is_news(state: Centres, update: Update) -> bool:
    is_new = state.who.counts(update.sender, update.base, state.version)
    return is_new and update.vector.shape == state.w.shape


def _heard(state: Centres, update: Update) -> Centres:
    client = update.sender
    said = np.clip(update.vector, -_LARGEST, _LARGEST).astype(np.float32)
    losses = {name: loss for name, loss in state.losses.items() if name != client}
    if "loss" in update.values:
        losses[client] = float(update.values["loss"])
    who = state.who.heard(client, update.base)
    return replace(state, held={**state.held, client: said}, who=who, losses=losses)


# --- a round --------------------------------------------------------------------------------------


def _closed(state: Centres, rule: Rule, settings: Clustering) -> tuple[Centres, Effects]:
    forgotten, silent = _forgotten(state, settings)
    fit = fitted(forgotten, rule, settings)
    cohort = sorted(state.who.arrived)
    report = report_of(forgotten, fit, settings, cohort) | {"silent": silent}
    why = _why_not(fit)
    if why:
        return _abandoned(forgotten, settings, report | {"why": why})
    limit, version = settings.rounds.limit, state.version + 1
    is_last = limit is not None and version >= limit
    note = Closed(state.round, version, moved=True, report=report | {"stop": is_last})
    state = replace(fit.state, version=version, who=fit.state.who.counted(version), losses={})
    if is_last:
        return replace(state, is_open=False), (note,)
    state = replace(state, round=state.round + 1)
    return state, (note, *_asking(state, settings, cohort))


def _forgotten(state: Centres, settings: Clustering) -> tuple[Centres, list[str]]:
    """Let go of the weights of clients that were silent for too long; their cluster stays known."""
    late = state.who.overdue(state.version + 1, Calling(patience=settings.stale_after))
    gone = [name for name in late if name in state.held]
    held = {name: vector for name, vector in state.held.items() if name not in frozenset(gone)}
    return replace(state, held=held, who=state.who.without(late)), gone


def _why_not(fit: Fit) -> str:
    """Return why a round moved nothing: no rule could decide, or its step cannot be announced."""
    if not (fit.moved.decided or fit.begun):
        return "; ".join(f"cluster {label}: {why}" for label, why in fit.moved.kept.items())
    if not np.isfinite(published(fit.state.centres)).all():
        return "the step left the finite numbers"
    return ""


def _abandoned(
    state: Centres, settings: Clustering, report: dict[str, Any]
) -> tuple[Centres, Effects]:
    """Leave centres and clusters as they are, and ask anew whoever answered."""
    told = {key: report[key] for key in ("cohort", "staleness", "silent", "kept", "why")}
    note = Closed(state.round, state.version, moved=False, report=told | {"stop": False})
    cohort = sorted(state.who.arrived)
    who = replace(state.who, arrived={})
    state = replace(state, round=state.round + 1, who=who, losses={})
    return state, (note, *_asking(state, settings, cohort))
