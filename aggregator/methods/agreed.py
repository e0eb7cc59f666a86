"""A consensus among clients that keep weights of their own: BAFDP, BSFDP, RSA and DP-RSA.

At a firing the consensus z steps along ``mean_j(dual_j + l1 sign(z - w_j))`` over the latest
weights of every client. They count by a sign only; a dual is computed here and bounded, never
received: so no client moves a coordinate of z by more than ``rate (l1 + bound) / R`` a firing,
however large the numbers it sends.

How BAFDP's text was read where it cannot be meant. The server's (20) sums duals over the honest
clients, whom it cannot tell; with unbounded duals of all clients one liar at 10^6 takes a consensus
that belongs into [0, 3] to 292 645. Hence the bound, by default the l1 weight itself. The
regulariser of (17) has a sign slip that would drive duals apart; both of its terms are subtracted
(``Ascent.is_damped``). The 1/M of (16) is in the devices' rates, so the server takes means over the
clients it knows (``normalise``). RSA has sums. Staleness is recorded and bounded, it is no weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from aggregator.methods.averaging import Rounds, published
from aggregator.methods.gathering import Calling, Gathered
from edge_sdk.wire.method import Array, Closed, Due, Effects, Event, Half, Member, Task, Update
from edge_sdk.wire.mirror import Ascent, check, damping, next_dual
from edge_sdk.wire.spec import Vector

ASK = "step"
Numbers = Callable[[int], Mapping[str, float]]
"""The numbers of a task that carries a version."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The dual of BAFDP's constraint that a client's budget stays below its cap.

    Attributes:
        lowest: A claimed budget counts as at least so much.
        cap: And at most so much (the paper's a).
        rate: Step of the dual (alpha_lambda).
        least: Floor of its damping.
    """

    lowest: float
    cap: float
    rate: float
    least: float = 0.0

    def claimed(self, eps: float) -> float:
        """Return what a claim counts as."""
        return min(max(eps, self.lowest), self.cap)

    def next_dual(self, dual: float, eps: float, fired: int) -> float:
        """Return the dual after a firing; it stays 0 while the budget is below its cap.

        >>> Budget(lowest=0.01, cap=10.0, rate=0.1).next_dual(0.5, 10.0, 15)
        0.25
        """
        if self.rate == 0.0:
            return dual
        kappa = damping(self.rate, fired, self.least)
        return max(0.0, dual + self.rate * ((eps - self.cap) - kappa * dual))


@dataclass(frozen=True, slots=True)
class Consensus:
    """What a run of this family is.

    Attributes:
        calling: When to fire.
        rounds: Deadline, how many are enough then, and how many firings a run has.
        numbers: What tasks say, by version.
        rate: Step of the consensus.
        decay: The step falls with this power of the firing: 0 is constant, RSA has 1/2.
        l1: Weight of the l1 term.
        weight: Of ``z^2 / 2``, the server's own term (RSA's f_0).
        normalise: Whether clients' pulls are averaged or summed.
        ascent: How consensus duals climb; None has none (RSA).
        budget: How budgets are held below their cap; None has none.
        votes: Whether answers are signs of ``z - w``; they count in one firing only.
        gain: What a vote is multiplied with, to undo the bias of noisy ones.
    """

    calling: Calling
    rounds: Rounds
    numbers: Numbers
    rate: float
    decay: float = 0.0
    l1: float = 0.0
    weight: float = 0.0
    normalise: Literal["mean", "sum"] = "mean"
    ascent: Ascent | None = None
    budget: Budget | None = None
    votes: bool = False
    gain: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Agreed:
    """The server's state. Mappings are by client.

    Attributes:
        round: The firing that is gathered for, from 1; 0 before the first.
        version: How often the consensus has moved.
        is_open: Whether answers are wanted.
        w: The consensus z, float64, shape ``(P,)``.
        who: Who takes part, and whose answers wait.
        held: Latest weights, or votes until they are counted; float32.
        dual: Our copy of each dual, float32: bit for bit the client's.
        eps: Budgets as claimed and clamped.
        eps_dual: Their duals.
        owed: Whom the next task must tell its dual, because the copies may differ.
        losses: Reported with the waiting answers.
    """

    round: int
    version: int
    is_open: bool
    w: NDArray[np.float64]
    who: Gathered = field(default_factory=Gathered)
    held: Mapping[str, Array] = field(default_factory=dict)
    dual: Mapping[str, Array] = field(default_factory=dict)
    eps: Mapping[str, float] = field(default_factory=dict)
    eps_dual: Mapping[str, float] = field(default_factory=dict)
    owed: Mapping[str, bool] = field(default_factory=dict)
    losses: Mapping[str, float] = field(default_factory=dict)

    @property
    def waiting(self) -> int:
        """How many answers wait for the firing."""
        return len(self.who.arrived)


def agreed(consensus: Consensus) -> Half[Agreed]:
    """Return the server half.

    Events: ``OPEN`` begins; a ``Member`` who came gets the present consensus, unless its answer
    waits (the shell knows whether it is at work on an older one, which then stays its task); one
    who went is not waited for; an ``Update`` is a client's answer; the ``Due`` of a round is its
    deadline, at which fewer are enough. No answer is given up because the consensus has moved.
    """

    def apply(state: Agreed, event: Event) -> tuple[Agreed, Effects]:
        match event:
            case Due(ask="open") if state.round == 0:
                state = replace(state, round=1, is_open=True)
                return state, (*_tasks(state, consensus, state.who.present), _due(state, consensus))
            case Member(client=client, present=is_here):
                return _met(state, consensus, client, is_here=is_here)
            case Update() if state.is_open and _is_news(state, event):
                state = _heard(state, consensus, event)
                ready = state.who.is_ready(state.version, consensus.calling)
                return _fired(state, consensus) if ready else (state, ())
            case Due(round=number, ask="step") if state.is_open and number == state.round:
                if _is_enough(state, consensus):
                    return _fired(state, consensus)
                return state, (_due(state, consensus),)
        return state, ()

    def init(w: Vector) -> Agreed:
        return Agreed(0, 0, is_open=False, w=np.asarray(w, np.float64).copy())

    return Half(init, apply, model=lambda state: {"p": published(state.w)})


def _due(state: Agreed, consensus: Consensus) -> Due:
    return Due(state.round, ASK, after=consensus.rounds.deadline)


def _is_enough(state: Agreed, consensus: Consensus) -> bool:
    """Whether the deadline may fire: enough have answered, and nobody must be waited for."""
    late = replace(consensus.calling, enough=consensus.rounds.enough, everybody=False)
    return state.who.is_ready(state.version, late)


def _met(
    state: Agreed, consensus: Consensus, client: str, *, is_here: bool
) -> tuple[Agreed, Effects]:
    who = state.who
    if not is_here:
        if not who.present.get(client, False):
            return state, ()
        state = replace(state, who=who.went(client))
        ready = (
            state.is_open and who.arrived and state.who.is_ready(state.version, consensus.calling)
        )
        return _fired(state, consensus) if ready else (state, ())
    if client not in who.told:
        state = replace(state, who=who.came(client, state.version))
    elif not who.present[client]:
        state = replace(state, who=replace(who, present={**who.present, client: True}))
    if client in who.arrived or not state.is_open:
        return state, ()
    return state, (_task(state, consensus, client, is_counted=False),)


def _tasks(state: Agreed, consensus: Consensus, clients: Mapping[str, object]) -> tuple[Task, ...]:
    return tuple(_task(state, consensus, client, is_counted=False) for client in sorted(clients))


def _task(state: Agreed, consensus: Consensus, client: str, *, is_counted: bool) -> Task:
    """Ask a client to step from the present consensus.

    Where its last answer was just counted, it takes the dual's step itself; else it is told the
    dual that we hold, or that we hold none.
    """
    values = dict(consensus.numbers(state.version))
    arrays: dict[str, Array] = {"z": published(state.w)}
    if consensus.budget is not None:
        values["eps_dual"] = state.eps_dual.get(client, 0.0)
    if consensus.ascent is not None:
        values["counted"] = float(is_counted)
        if not is_counted and client in state.dual:
            arrays["dual"] = state.dual[client]
    return Task(client, state.round, ASK, base=state.version, values=values, arrays=arrays)


def _is_news(state: Agreed, update: Update) -> bool:
    is_new = state.who.counts(update.sender, update.base, state.version)
    return is_new and update.vector.shape == state.w.shape


def _heard(state: Agreed, consensus: Consensus, update: Update) -> Agreed:
    """Keep an answer: only its sign if it is a vote, its budget clamped, never a dual."""
    client, vector = update.sender, update.vector
    said = np.sign(vector) if consensus.votes else vector
    with np.errstate(over="ignore"):
        held = {**state.held, client: np.clip(said, -_LARGEST, _LARGEST).astype(np.float32)}
    state = replace(state, held=held)
    if _is_adrift(state, update):
        state = replace(state, owed={**state.owed, client: True})
    if consensus.budget is not None:
        eps = consensus.budget.claimed(update.values.get("eps", consensus.budget.lowest))
        state = replace(state, eps={**state.eps, client: eps})
    if "loss" in update.values:
        state = replace(state, losses={**state.losses, client: float(update.values["loss"])})
    return replace(state, who=state.who.heard(client, update.base))


_LARGEST = float(np.finfo(np.float32).max)


def _is_adrift(state: Agreed, update: Update) -> bool:
    """Whether a client's dual may differ from ours: unknown, on an older task, or it says so."""
    client = update.sender
    if state.who.told.get(client) != update.base:
        return True
    ours = state.dual.get(client)
    mine = np.zeros(state.w.shape, np.float32) if ours is None else ours
    return bool(update.check) and update.check != check(mine)


def _fired(state: Agreed, consensus: Consensus) -> tuple[Agreed, Effects]:
    state, dropped = _dropped(state, consensus)
    z = _moved(state, consensus)
    report = _report(state, z) | {"dropped": dropped}
    if not np.isfinite(published(z)).all():
        return _abandoned(state, consensus, report)
    limit, fired = consensus.rounds.limit, state.version
    is_last = limit is not None and fired + 1 >= limit
    note = Closed(state.round, fired + 1, moved=True, report=report | {"stop": is_last})
    cohort = sorted(state.who.arrived)
    state = _climbed(replace(state, w=z), consensus, cohort)
    adrift = {client for client in cohort if client in state.owed}
    state = replace(
        state,
        version=fired + 1,
        who=state.who.counted(fired + 1),
        held={} if consensus.votes else state.held,
        owed={client: True for client in state.owed if client not in adrift},
        losses={},
    )
    if is_last:
        return replace(state, is_open=False), (note,)
    state = replace(state, round=state.round + 1)
    tasks = (_task(state, consensus, name, is_counted=name not in adrift) for name in cohort)
    return state, (note, *tasks, _due(state, consensus))


def _dropped(state: Agreed, consensus: Consensus) -> tuple[Agreed, dict[str, str]]:
    """Let go of who is too far behind: its pull ends, its dual begins anew when it answers."""
    late = state.who.overdue(state.version, consensus.calling)
    gone = [client for client in late if _is_let_go(state, consensus, client)]
    if not gone:
        return state, {}
    lost = [client for client in gone if client in state.held or client in state.dual]
    state = replace(_forgotten(state, gone), who=state.who.without(gone))
    state = replace(state, owed={**state.owed, **dict.fromkeys(gone, True)})
    return state, dict.fromkeys(lost, f"silent for {consensus.calling.patience} firings")


def _is_let_go(state: Agreed, consensus: Consensus, client: str) -> bool:
    return consensus.calling.overdue == "drop" or not state.who.present.get(client, False)


def _forgotten(state: Agreed, clients: list[str]) -> Agreed:
    def kept(mapping: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in mapping.items() if name not in clients}

    return replace(
        state,
        held=kept(state.held),
        dual=kept(state.dual),
        eps=kept(state.eps),
        eps_dual=kept(state.eps_dual),
        losses=kept(state.losses),
    )


def _moved(state: Agreed, consensus: Consensus) -> NDArray[np.float64]:
    """Return the consensus after a firing; who has never answered pulls at nothing.

    Signs are taken of the consensus as it was announced: a client that stopped exactly there must
    not pull because of a rounding.
    """
    z = published(state.w).astype(np.float64)
    pull = np.zeros_like(state.w)
    for client in sorted(state.held):
        vote = state.held[client] if consensus.votes else np.sign(z - state.held[client])
        pull += consensus.l1 * consensus.gain * vote
        if client in state.dual:
            pull += state.dual[client]
    if consensus.normalise == "mean":
        pull /= len(state.who.present)
    rate = consensus.rate / (state.version + 1.0) ** consensus.decay
    moved: NDArray[np.float64] = state.w - rate * (pull + consensus.weight * state.w)
    return moved


def _climbed(state: Agreed, consensus: Consensus, cohort: list[str]) -> Agreed:
    """Take the dual steps of who was counted, with the new consensus: what they will do too."""
    fired = state.version
    if consensus.budget is not None:
        held = consensus.budget
        risen = {
            name: held.next_dual(state.eps_dual.get(name, 0.0), state.eps[name], fired)
            for name in cohort
        }
        state = replace(state, eps_dual={**state.eps_dual, **risen})
    if consensus.ascent is None:
        return state
    z, none = published(state.w), np.zeros(state.w.shape, np.float32)
    duals = {
        name: next_dual(state.dual.get(name, none), z, state.held[name], fired, consensus.ascent)
        for name in cohort
    }
    return replace(state, dual={**state.dual, **duals})


def _abandoned(
    state: Agreed, consensus: Consensus, report: dict[str, Any]
) -> tuple[Agreed, Effects]:
    """Leave the consensus where it is; whose answers led it astray begin anew."""
    why = {"why": "the step left the finite numbers", "stop": False}
    note = Closed(state.round, state.version, moved=False, report=report | why)
    cohort = sorted(state.who.arrived)
    state = _forgotten(state, cohort)
    state = replace(state, round=state.round + 1, who=replace(state.who, arrived={}))
    tasks = (_task(state, consensus, client, is_counted=False) for client in cohort)
    return state, (note, *tasks, _due(state, consensus))


def _length(vector: Array) -> float:
    return float(np.linalg.norm(vector.astype(np.float64)))


def _report(state: Agreed, z: NDArray[np.float64]) -> dict[str, Any]:
    """Return what is worth telling about a firing; plain values only, for a page or JSON."""
    cohort = sorted(state.who.arrived)
    report: dict[str, Any] = {
        "cohort": cohort,
        "staleness": {name: state.version - state.who.arrived[name] for name in cohort},
        "norms": {name: _length(state.held[name]) for name in cohort},
        "known": len(state.who.present),
        "adrift": sorted(set(state.owed) & set(cohort)),
        "step": float(np.linalg.norm(z - state.w)),
    }
    if state.losses:
        report["loss"] = float(np.mean([state.losses[name] for name in sorted(state.losses)]))
    if state.eps:
        report["eps"] = float(np.mean([state.eps[name] for name in sorted(state.eps)]))
    return report
