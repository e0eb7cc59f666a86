"""Consensus among clients that keep their own weights: the server half of BAFDP and RSA.

At a firing the consensus z steps along the sum of the clients' duals and the family's pull
(``l1_penalty.L1`` for BAFDP and RSA, ``cutting_planes.Worst`` for ASPIRE-EASE). A dual is computed
here and bounded, never received. Staleness is recorded and bounded; it is no weight.

Departures from BAFDP's text: The server's (20) sums duals over the honest clients, which the server
cannot identify; with unbounded duals of all clients one Byzantine client at 10^6 moves a consensus
in [0, 3] to 292 645. Hence the bound, by default a tenth of the l1 weight (BAFDP). The regulariser of (17) has
a sign error that would drive duals apart; both of its terms are subtracted.
The 1/M of (16) is in the devices' rates, so the server takes means over the clients it knows
(``normalise``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from aggregator.methods.base import round_machine
from aggregator.methods.base.quorum import (
    LatestUpdates,
    QuorumSettings,
    clipped,
    counts,
    joined,
    left,
)
from aggregator.methods.base.round_machine import (
    NOT_FINITE,
    RoundHooks,
    RoundOutcome,
    Rounds,
    mean_loss,
    published,
)
from edge_sdk.extensions.papers.consensus_dual import Ascent, dual_digest, next_dual
from edge_sdk.protocol.contract.method import Array, Due, Effects, Half, Scalars, Task, Update
from edge_sdk.protocol.contract.parameter_layout import Vector

ASK = "step"


class ConsensusVariant(Protocol):
    """Hooks of a method of this kind. ``own`` is its private tree of leaves."""

    def start(self) -> Any:  # noqa: ANN401 - each family's own state
        """Return the family's state before the first update."""

    def numbers(self, own: Any, client: str, version: int) -> Scalars:  # noqa: ANN401
        """Return the numbers of a client's task."""

    def kept(self, vector: Array) -> Array:
        """Return the part of an update that is kept."""

    def accepted(self, own: Any, update: Update) -> Any:  # noqa: ANN401
        """Return the state with the numbers of an update."""

    def pull(self, state: ConsensusServerState, z: Array) -> Array:
        """Return the sum of the pulls on z beside the duals, shape ``(P,)``, float64."""

    def closed(self, state: ConsensusServerState, cohort: list[str]) -> ConsensusServerState:
        """Return the state after a firing with the new consensus, at the old version."""

    def without(self, own: Any, clients: Iterable[str]) -> Any:  # noqa: ANN401
        """Return the state without some clients."""

    def report(self, own: Any) -> Mapping[str, Any]:  # noqa: ANN401
        """Return the family's part of a firing's report."""


@dataclass(frozen=True, slots=True)
class ConsensusSettings:
    """Settings of a run: the family, the quorum and the steps."""

    family: ConsensusVariant
    quorum: QuorumSettings
    rounds: Rounds  # deadline, number of updates that suffices then, and number of firings of a run
    rate: float
    # Exponent with which the rate decreases with the firing: 0 is constant, RSA has 1/2
    decay: float = 0.0
    weight: float = 0.0  # weight of ``z^2 / 2``, the server's own term (RSA's f_0)
    normalise: Literal["mean", "sum"] = "mean"  # clients' pulls are averaged or summed
    ascent: Ascent | None = None  # step of the duals; None has no duals


@dataclass(frozen=True, slots=True, eq=False)
class ConsensusServerState(LatestUpdates):
    """The server's state; ``w`` is the consensus z. Mappings are by client."""

    own: Any
    # the server's copy of each dual, float32: bit for bit the client's
    dual: Mapping[str, Array] = field(default_factory=dict)
    # clients whose next task carries the dual, because the copies may differ
    resent_duals: Mapping[str, bool] = field(default_factory=dict, metadata={"leaf": "owed"})


def consensus_half(consensus: ConsensusSettings) -> Half[ConsensusServerState]:
    """Return the server half: ``round_machine.apply`` over the latest updates.

    A client at work on an older consensus keeps that task, which the shell records. No update is
    discarded because the consensus has moved.
    """

    def is_ready(state: ConsensusServerState, at_deadline: bool) -> bool:  # noqa: FBT001 - as the hook
        quorum, enough = consensus.quorum, consensus.rounds.enough
        fewer = replace(quorum, enough=enough, waits_for_all=False) if at_deadline else quorum
        return state.quorum.is_ready(state.version, fewer)

    def init(w: Vector) -> ConsensusServerState:
        z = np.asarray(w, np.float64).copy()
        return ConsensusServerState(0, 0, is_open=False, w=z, own=consensus.family.start())

    hooks = RoundHooks(
        consensus.rounds,
        counts=counts,
        accept=partial(_accepted, consensus),
        combine=partial(_combined, consensus),
        discard=partial(_discarded, consensus),
        tasks=partial(_tasks, consensus, frozenset()),
        ask=ASK,
        clients=lambda state: state.quorum.present,
        join=joined,
        leave=left,
        is_ready=is_ready,
        awaits_members=True,
        extend=lambda due: Due(due.round, due.ask, after=consensus.rounds.deadline),
    )
    return Half(
        init, partial(round_machine.apply, hooks), model=lambda state: {"p": published(state.w)}
    )


# --- tasks ----------------------------------------------------------------------------------------


def _tasks(
    consensus: ConsensusSettings,
    counted: frozenset[str],
    state: ConsensusServerState,
    clients: Iterable[str],
) -> Effects:
    """Return tasks; clients whose update was just ``counted`` take the dual's step themselves."""
    return tuple(
        _task(state, consensus, name, is_counted=name in counted) for name in sorted(clients)
    )


def _task(
    state: ConsensusServerState, consensus: ConsensusSettings, client: str, *, is_counted: bool
) -> Task:
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


# --- updates --------------------------------------------------------------------------------------


def _accepted(
    consensus: ConsensusSettings, state: ConsensusServerState, update: Update
) -> ConsensusServerState:
    """Keep an update; never a dual."""
    client = update.sender
    if _is_adrift(state, update):
        state = replace(state, resent_duals={**state.resent_duals, client: True})
    if "loss" in update.values:
        state = replace(state, losses={**state.losses, client: float(update.values["loss"])})
    return replace(
        state,
        held={**state.held, client: clipped(consensus.family.kept(update.vector))},
        own=consensus.family.accepted(state.own, update),
        quorum=state.quorum.received(client, update.base),
    )


def _is_adrift(state: ConsensusServerState, update: Update) -> bool:
    client = update.sender
    if state.quorum.task_version.get(client) != update.base:
        return True
    kept = state.dual.get(client)
    dual = np.zeros(state.w.shape, np.float32) if kept is None else kept
    return bool(update.check) and update.check != dual_digest(dual)


# --- a firing -------------------------------------------------------------------------------------


def _combined(
    consensus: ConsensusSettings, state: ConsensusServerState
) -> RoundOutcome[ConsensusServerState]:
    """Move the consensus; clients whose copy of the dual may differ receive the server's."""
    state, dropped = _dropped(state, consensus)
    z, cohort = _moved(state, consensus), sorted(state.quorum.arrived)
    report = _report(state, consensus, z) | {"dropped": dropped}
    if not np.isfinite(published(z)).all():
        return replace(_discarded(consensus, state, NOT_FINITE), report=report)
    state = consensus.family.closed(_climbed(replace(state, w=z), consensus, cohort), cohort)
    adrift = frozenset(name for name in cohort if name in state.resent_duals)
    resent_duals = {name: True for name in state.resent_duals if name not in adrift}
    state = replace(
        state, quorum=state.quorum.counted(state.version + 1), resent_duals=resent_duals, losses={}
    )
    tasks = partial(_tasks, consensus, frozenset(cohort) - adrift)
    return RoundOutcome(state, report, cohort, tasks=tasks)


def _discarded(
    consensus: ConsensusSettings, state: ConsensusServerState, why: str
) -> RoundOutcome[ConsensusServerState]:
    cohort = sorted(state.quorum.arrived)
    state = _forgotten(state, consensus, cohort)
    state = replace(state, quorum=replace(state.quorum, arrived={}))
    return RoundOutcome(state, {"cohort": cohort}, cohort, why)


def _dropped(
    state: ConsensusServerState, consensus: ConsensusSettings
) -> tuple[ConsensusServerState, dict[str, str]]:
    quorum, present = consensus.quorum, state.quorum.present
    late = state.quorum.overdue(state.version, quorum)
    removed = [name for name in late if quorum.overdue == "drop" or not present.get(name, False)]
    if not removed:
        return state, {}
    lost = [name for name in removed if name in state.held or name in state.dual]
    state = replace(_forgotten(state, consensus, removed), quorum=state.quorum.without(removed))
    state = replace(state, resent_duals={**state.resent_duals, **dict.fromkeys(removed, True)})
    return state, dict.fromkeys(lost, f"no update for {quorum.staleness_bound} firings")


def _forgotten(
    state: ConsensusServerState, consensus: ConsensusSettings, clients: list[str]
) -> ConsensusServerState:
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
    removed = frozenset(clients)
    return {name: value for name, value in mapping.items() if name not in removed}


def _moved(state: ConsensusServerState, consensus: ConsensusSettings) -> NDArray[np.float64]:
    """Return the consensus after a firing; a client without an update has no pull.

    The consensus is used as it was announced: a client that stopped exactly there must not pull
    because of rounding.
    """
    z = published(state.w).astype(np.float64)
    pull = consensus.family.pull(state, z)
    for client in sorted(state.dual):
        pull = pull + state.dual[client]
    if consensus.normalise == "mean":
        pull = pull / len(state.quorum.present)
    rate = consensus.rate / (state.version + 1.0) ** consensus.decay
    moved: NDArray[np.float64] = state.w - rate * (pull + consensus.weight * state.w)
    return moved


def _climbed(
    state: ConsensusServerState, consensus: ConsensusSettings, cohort: list[str]
) -> ConsensusServerState:
    ascent = consensus.ascent
    if ascent is None:
        return state
    z, none = published(state.w), np.zeros(state.w.shape, np.float32)
    duals = {
        name: next_dual(state.dual.get(name, none), z, state.held[name], state.version, ascent)
        for name in cohort
    }
    return replace(state, dual={**state.dual, **duals})


def _report(
    state: ConsensusServerState, consensus: ConsensusSettings, z: NDArray[np.float64]
) -> dict[str, Any]:
    """Return the report of a firing; plain values only, for a page or JSON."""
    cohort = sorted(state.quorum.arrived)
    return {
        "cohort": cohort,
        "staleness": {name: state.version - state.quorum.arrived[name] for name in cohort},
        "norms": {name: _length(state.held[name]) for name in cohort},
        "known": len(state.quorum.present),
        "adrift": sorted(frozenset(state.resent_duals) & frozenset(cohort)),
        "step": float(np.linalg.norm(z - state.w)),
        **mean_loss(state.losses),
        **consensus.family.report(state.own),
    }


def _length(vector: Array) -> float:
    return float(np.linalg.norm(vector.astype(np.float64)))
