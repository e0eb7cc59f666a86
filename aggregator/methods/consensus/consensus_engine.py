"""Consensus among clients that keep their own weights: the server half of BAFDP and RSA.

At a firing the consensus z steps along the sum of the clients' duals and the family's pull
(``l1_penalty.L1`` for BAFDP and RSA, ``cutting_planes.Worst`` for ASPIRE-EASE). A dual is computed
here and bounded, never received. Staleness is recorded and bounded; it is no weight.

Departures from BAFDP's text: The server's (20) sums duals over the honest clients, which the server
cannot identify; with unbounded duals of all clients one Byzantine client at 10^6 moves a consensus
in [0, 3] to 292 645. Hence the bound, by default the l1 weight itself. The regulariser of (17) has
a sign error that would drive duals apart; both of its terms are subtracted (``Ascent.is_damped``).
The 1/M of (16) is in the devices' rates, so the server takes means over the clients it knows
(``normalise``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from aggregator.methods.base.averaging import DEFECT, Rounds, published
from aggregator.methods.base.quorum import QuorumSettings, QuorumState
from edge_sdk.shared_math.consensus_dual import Ascent, check, next_dual
from edge_sdk.wire.contract.method import (
    Array,
    Closed,
    Due,
    Effects,
    Event,
    Half,
    Member,
    Scalars,
    Task,
    Update,
)
from edge_sdk.wire.contract.parameter_layout import Vector

ASK = "step"

_LARGEST = float(np.finfo(np.float32).max)


class ConsensusVariant(Protocol):
    """Hooks of a method of this kind. ``own`` is its private tree of leaves."""

    def start(self) -> Any:  # noqa: ANN401 - each family's own state
        """Return the family's state before the first update."""

    def numbers(self, own: Any, client: str, version: int) -> Scalars:  # noqa: ANN401
        """Return the numbers of a client's task."""

    def said(self, vector: Array) -> Array:
        """Return the part of an update that is kept."""

    def heard(self, own: Any, update: Update) -> Any:  # noqa: ANN401
        """Return the state with the numbers of an update."""

    def pull(self, state: Agreed, z: Array) -> Array:
        """Return the sum of the pulls on z beside the duals, shape ``(P,)``, float64."""

    def fired(self, state: Agreed, cohort: list[str]) -> Agreed:
        """Return the state after a firing with the new consensus, at the old version."""

    def without(self, own: Any, clients: Iterable[str]) -> Any:  # noqa: ANN401
        """Return the state without some clients."""

    def report(self, own: Any) -> Mapping[str, Any]:  # noqa: ANN401
        """Return the family's part of a firing's report."""


@dataclass(frozen=True, slots=True)
class Consensus:
    """Settings of a run: the family, the quorum and the steps.

    Attributes:
        family: Family with its pull on the consensus.
        calling: Settings of the quorum.
        rounds: Deadline, number of updates that suffices then, and number of firings of a run.
        rate: Step of the consensus.
        decay: Exponent with which the rate decreases with the firing: 0 is constant, RSA has 1/2.
        weight: Weight of ``z^2 / 2``, the server's own term (RSA's f_0).
        normalise: Clients' pulls are averaged or summed.
        ascent: Step of the duals; None has no duals.
    """

    family: ConsensusVariant
    calling: QuorumSettings
    rounds: Rounds
    rate: float
    decay: float = 0.0
    weight: float = 0.0
    normalise: Literal["mean", "sum"] = "mean"
    ascent: Ascent | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Agreed:
    """Store the server's state. Mappings are by client.

    Attributes:
        round: The open firing, from 1; 0 before the first.
        version: Number of times the consensus has moved.
        is_open: True while the run accepts updates.
        w: Consensus z, float64, shape ``(P,)``.
        own: State of the family.
        who: Participating clients and waiting updates.
        held: Latest vector of each client, float32.
        dual: The server's copy of each dual, float32: bit for bit the client's.
        owed: Clients whose next task carries the dual, because the copies may differ.
        losses: Losses reported with the waiting updates.
    """

    round: int
    version: int
    is_open: bool
    w: NDArray[np.float64]
    own: Any
    who: QuorumState = field(default_factory=QuorumState)
    held: Mapping[str, Array] = field(default_factory=dict)
    dual: Mapping[str, Array] = field(default_factory=dict)
    owed: Mapping[str, bool] = field(default_factory=dict)
    losses: Mapping[str, float] = field(default_factory=dict)

    @property
    def waiting(self) -> int:
        """Return the number of updates that wait for the firing."""
        return len(self.who.arrived)


def agreed(consensus: Consensus) -> Half[Agreed]:
    """Return the server half.

    Events: ``OPEN`` begins; a ``Member`` that joins gets the present consensus, unless its update
    waits (a client at work on an older consensus keeps that task, which the shell records); an
    absent client is not waited for; an ``Update`` is a client's update; the ``Due`` of a round is
    its deadline, at which fewer suffice. No update is discarded because the consensus has moved.
    """

    def apply(state: Agreed, event: Event) -> tuple[Agreed, Effects]:
        match event:
            case Due(ask="open") if state.round == 0:
                state = replace(state, round=1, is_open=True)
                return state, _asking(state, consensus, state.who.present, counted=())
            case Member(client=client, present=True):
                return _came(state, consensus, client)
            case Member(client=client) if state.who.present.get(client, False):
                return _perhaps(replace(state, who=state.who.went(client)), consensus)
            case Update() if state.is_open and _is_news(state, event):
                return _perhaps(_heard(state, consensus, event), consensus)
            case Due(round, "step" | "abandon" as ask) if state.is_open and round == state.round:
                return _late(state, consensus) if ask == ASK else _given_up(state, consensus)
        return state, ()

    def init(w: Vector) -> Agreed:
        z = np.asarray(w, np.float64).copy()
        return Agreed(0, 0, is_open=False, w=z, own=consensus.family.start())

    return Half(init, apply, model=lambda state: {"p": published(state.w)})


# --- tasks ----------------------------------------------------------------------------------------


def _came(state: Agreed, consensus: Consensus, client: str) -> tuple[Agreed, Effects]:
    who = state.who
    if client not in who.told:
        state = replace(state, who=who.came(client, state.version))
    elif not who.present[client]:
        state = replace(state, who=replace(who, present={**who.present, client: True}))
    if client in who.arrived or not state.is_open:
        return state, ()
    return state, (_task(state, consensus, client, is_counted=False),)


def _asking(
    state: Agreed, consensus: Consensus, clients: Iterable[str], counted: Iterable[str]
) -> Effects:
    """Return tasks and the deadline; clients just counted take the dual's step themselves."""
    known = frozenset(counted)
    tasks = (_task(state, consensus, name, is_counted=name in known) for name in sorted(clients))
    return (*tasks, _due(state, consensus))


def _task(state: Agreed, consensus: Consensus, client: str, *, is_counted: bool) -> Task:
    """Return the task to step from the present consensus.

    A client whose last update was just counted takes the dual's step itself; for any other the task
    carries the server's copy of the dual, or that there is none.
    """
    values = dict(consensus.family.numbers(state.own, client, state.version))
    arrays: dict[str, Array] = {"z": published(state.w)}
    if consensus.ascent is not None:
        values["counted"] = float(is_counted)
        if not is_counted and client in state.dual:
            arrays["dual"] = state.dual[client]
    return Task(client, state.round, ASK, base=state.version, values=values, arrays=arrays)


def _due(state: Agreed, consensus: Consensus) -> Due:
    return Due(state.round, ASK, after=consensus.rounds.deadline)


# --- updates --------------------------------------------------------------------------------------


def _is_news(state: Agreed, update: Update) -> bool:
    is_new = state.who.counts(update.sender, update.base, state.version)
    return is_new and update.vector.shape == state.w.shape


def _heard(state: Agreed, consensus: Consensus, update: Update) -> Agreed:
    """Keep an update; never a dual."""
    client, said = update.sender, consensus.family.said(update.vector)
    held = np.clip(said, -_LARGEST, _LARGEST).astype(np.float32)
    if _is_adrift(state, update):
        state = replace(state, owed={**state.owed, client: True})
    if "loss" in update.values:
        state = replace(state, losses={**state.losses, client: float(update.values["loss"])})
    return replace(
        state,
        held={**state.held, client: held},
        own=consensus.family.heard(state.own, update),
        who=state.who.heard(client, update.base),
    )


def _is_adrift(state: Agreed, update: Update) -> bool:
    """Return True if a client's dual may differ: unknown, for another task, or reported so."""
    client = update.sender
    if state.who.told.get(client) != update.base:
        return True
    ours = state.dual.get(client)
    mine = np.zeros(state.w.shape, np.float32) if ours is None else ours
    return bool(update.check) and update.check != check(mine)


# --- a firing -------------------------------------------------------------------------------------


def _perhaps(state: Agreed, consensus: Consensus) -> tuple[Agreed, Effects]:
    """Fire if there are enough updates."""
    is_ready = state.who.is_ready(state.version, consensus.calling)
    return _fired(state, consensus) if state.is_open and state.waiting and is_ready else (state, ())


def _late(state: Agreed, consensus: Consensus) -> tuple[Agreed, Effects]:
    """Fire with fewer updates at the deadline, or wait for another deadline."""
    fewer = replace(consensus.calling, enough=consensus.rounds.enough, everybody=False)
    if state.who.is_ready(state.version, fewer):
        return _fired(state, consensus)
    return state, (_due(state, consensus),)


def _fired(state: Agreed, consensus: Consensus) -> tuple[Agreed, Effects]:
    state, dropped = _dropped(state, consensus)
    z, cohort = _moved(state, consensus), sorted(state.who.arrived)
    report = _report(state, consensus, z) | {"dropped": dropped}
    if not np.isfinite(published(z)).all():
        return _abandoned(state, consensus, report, "the step left the finite numbers")
    limit, version = consensus.rounds.limit, state.version + 1
    is_last = limit is not None and version >= limit
    note = Closed(state.round, version, moved=True, report=report | {"stop": is_last})
    state = consensus.family.fired(_climbed(replace(state, w=z), consensus, cohort), cohort)
    adrift = frozenset(name for name in cohort if name in state.owed)
    owed = {name: True for name in state.owed if name not in adrift}
    state = replace(state, version=version, who=state.who.counted(version), owed=owed, losses={})
    if is_last:
        return replace(state, is_open=False), (note,)
    state = replace(state, round=state.round + 1)
    return state, (note, *_asking(state, consensus, cohort, frozenset(cohort) - adrift))


def _dropped(state: Agreed, consensus: Consensus) -> tuple[Agreed, dict[str, str]]:
    """Drop clients too far behind: their pull ends, their dual restarts with their next update."""
    calling, present = consensus.calling, state.who.present
    late = state.who.overdue(state.version, calling)
    gone = [name for name in late if calling.overdue == "drop" or not present.get(name, False)]
    if not gone:
        return state, {}
    lost = [name for name in gone if name in state.held or name in state.dual]
    state = replace(_forgotten(state, consensus, gone), who=state.who.without(gone))
    state = replace(state, owed={**state.owed, **dict.fromkeys(gone, True)})
    return state, dict.fromkeys(lost, f"silent for {calling.patience} firings")


def _forgotten(state: Agreed, consensus: Consensus, clients: list[str]) -> Agreed:
    return replace(
        state,
        own=consensus.family.without(state.own, clients),
        held=without(state.held, clients),
        dual=without(state.dual, clients),
        losses=without(state.losses, clients),
    )


def without(mapping: Mapping[str, Any], clients: Iterable[str]) -> dict[str, Any]:
    """Return a mapping by client without some of them.

    >>> without({"a": 1, "b": 2}, ["b"])
    {'a': 1}
    """
    gone = frozenset(clients)
    return {name: value for name, value in mapping.items() if name not in gone}


def _moved(state: Agreed, consensus: Consensus) -> NDArray[np.float64]:
    """Return the consensus after a firing; a client without an update has no pull.

    The consensus is used as it was announced: a client that stopped exactly there must not pull
    because of rounding.
    """
    z = published(state.w).astype(np.float64)
    pull = consensus.family.pull(state, z)
    for client in sorted(state.dual):
        pull = pull + state.dual[client]
    if consensus.normalise == "mean":
        pull = pull / len(state.who.present)
    rate = consensus.rate / (state.version + 1.0) ** consensus.decay
    moved: NDArray[np.float64] = state.w - rate * (pull + consensus.weight * state.w)
    return moved


def _climbed(state: Agreed, consensus: Consensus, cohort: list[str]) -> Agreed:
    """Take the dual steps of the counted clients with the new consensus, as the clients will."""
    ascent = consensus.ascent
    if ascent is None:
        return state
    z, none = published(state.w), np.zeros(state.w.shape, np.float32)
    duals = {
        name: next_dual(state.dual.get(name, none), z, state.held[name], state.version, ascent)
        for name in cohort
    }
    return replace(state, dual={**state.dual, **duals})


def _given_up(state: Agreed, consensus: Consensus) -> tuple[Agreed, Effects]:
    return _abandoned(state, consensus, {"cohort": sorted(state.who.arrived)}, DEFECT)


def _abandoned(
    state: Agreed, consensus: Consensus, report: dict[str, Any], why: str
) -> tuple[Agreed, Effects]:
    """Keep the consensus; the clients of the failed firing begin again without held updates."""
    told = report | {"why": why, "stop": False}
    note = Closed(state.round, state.version, moved=False, report=told)
    cohort = sorted(state.who.arrived)
    state = _forgotten(state, consensus, cohort)
    state = replace(state, round=state.round + 1, who=replace(state.who, arrived={}))
    return state, (note, *_asking(state, consensus, cohort, counted=()))


def _report(state: Agreed, consensus: Consensus, z: NDArray[np.float64]) -> dict[str, Any]:
    """Return the report of a firing; plain values only, for a page or JSON."""
    cohort = sorted(state.who.arrived)
    report: dict[str, Any] = {
        "cohort": cohort,
        "staleness": {name: state.version - state.who.arrived[name] for name in cohort},
        "norms": {name: _length(state.held[name]) for name in cohort},
        "known": len(state.who.present),
        "adrift": sorted(frozenset(state.owed) & frozenset(cohort)),
        "step": float(np.linalg.norm(z - state.w)),
    }
    if state.losses:
        report["loss"] = float(np.mean([state.losses[name] for name in sorted(state.losses)]))
    return {**report, **consensus.family.report(state.own)}


def _length(vector: Array) -> float:
    return float(np.linalg.norm(vector.astype(np.float64)))
