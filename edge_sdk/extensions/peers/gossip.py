"""Train without a server: local steps, and mixing with neighbours (DFL-SGD, DFL-GT).

The half is pure and independent of the neighbours: the shell passes the vectors that count in an
exchange and their weights (``edge_sdk.extensions.peers.exchange``). A step is either *alone*, or an exchange
of one or two turns; in each turn the half first prepares its offer and then mixes the vectors
received.

The loop of ``local_sgd.train`` is not used: the shell asks for every single step and saves it, and
a step may start elsewhere than where its gradient was taken (at the mixed model), or follow a
tracker instead of a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from edge_sdk.extensions.peers.peer_mixing import mix
from edge_sdk.extensions.peers.topology import ATC, DGD
from edge_sdk.methods.local_sgd import LocalSgd, loss_gradient
from edge_sdk.methods.training_context import TrainingContext
from edge_sdk.protocol.contract.method import Array, Effects, Event, Half, Scalars, Task
from edge_sdk.protocol.contract.parameter_layout import ParamSpec, Vector
from edge_sdk.shared_math.optim import optimiser_step, scale

BEGIN, ALONE, ADAPT, MIX = "begin", "alone", "adapt", "mix"
"""Asks of the shell to the half; only ``begin`` also comes from outside."""

THETA, TRACKER = "theta", "tracker"
Turns = tuple[tuple[str, ...], ...]


def exchange_parts(method: str, values: Scalars) -> Turns:
    """Return the vectors offered in each turn of one exchange.

    Adapt-then-combine with a tracker needs two turns: the tracker is corrected by the gradient at
    the point after the first turn, and that sum is mixed.

    >>> exchange_parts("dfl_gt", {"order": 0.0}), exchange_parts("dfl_gt", {"order": 1.0})
    ((('theta', 'tracker'),), (('theta',), ('tracker',)))
    """
    if method != "dfl_gt":
        return ((THETA,),)
    return ((THETA,), (TRACKER,)) if values.get("order", DGD) == ATC else ((THETA, TRACKER),)


@dataclass(frozen=True, slots=True, eq=False)
class GossipState:
    """State of a device that exchanges models with neighbours."""

    p: Vector  # whole vector, personal layers included
    # last gradient it computed, a whole vector; None before the first, or untracked
    seen: Vector | None = None
    # estimate of the average gradient over all devices, shape ``(P,)`` of shared layers
    tracker: Vector | None = None
    draws: int = 0  # number of minibatches drawn, which is the number of the next

    def arrays(self) -> dict[str, Array]:
        """Return the state as named arrays, to be saved; ``from_arrays`` is the inverse."""
        out: dict[str, Array] = {"p": self.p, "draws": np.array(self.draws)}
        if self.seen is not None and self.tracker is not None:
            out |= {"seen": self.seen, "tracker": self.tracker}
        return out

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> GossipState:
        """Rebuild a state from the result of ``arrays``."""
        seen, tracker = arrays.get("seen"), arrays.get("tracker")
        return cls(arrays["p"], seen, tracker, int(arrays["draws"]))

    def offered(self, spec: ParamSpec, part: str) -> Vector:
        """Return the part of this state sent to neighbours, shape ``(P,)`` of shared layers."""
        if part == TRACKER:
            assert self.tracker is not None, "a tracker is sent after 'begin'"
            return self.tracker
        return spec.shared(self.p)


def dfl_sgd(local: TrainingContext, _settings: LocalSgd) -> Half[GossipState]:
    """Return DFL-SGD's device half: mix the models, and take a gradient step.

    Personal layers take the same steps and are never mixed. A device without windows only mixes; a
    gradient that is not finite is skipped.

    Reference:
        algorithms.md section 11; (10.4) with the mixing step in place of the local one.
    """

    def apply(state: GossipState, event: Event) -> tuple[GossipState, Effects]:
        if not isinstance(event, Task):
            return state, ()
        match event.ask, event.values.get("order", DGD):
            case ("alone", _) | ("adapt", 1.0):
                return _descended(local, state, state.p, event), ()
            case ["mix", 1.0]:
                return replace(state, p=_mixed(local.spec, state, event)), ()
            case ["mix", _]:
                return _descended(local, state, _mixed(local.spec, state, event), event), ()
        return state, ()

    return Half(GossipState, apply, model=lambda state: {"p": state.p})


def dfl_gt(local: TrainingContext, _settings: LocalSgd) -> Half[GossipState]:
    """Return DFL-GT's device half: steps along a tracker, which is mixed like the model.

    ``begin`` starts the tracker at this device's own gradient: started at 0, the average of all
    trackers would be the change of the gradient, and no device would move. The gradient of every
    step is kept and used again, so that the average of all trackers is the average of all latest
    gradients whatever minibatches are drawn, as long as both ends of a link mix or neither.

    Reference:
        algorithms.md section 11, (10.5) and (10.6), D11.
    """

    def apply(state: GossipState, event: Event) -> tuple[GossipState, Effects]:
        if not isinstance(event, Task):
            return state, ()
        if event.ask == BEGIN:
            return _tracking_anew(local, state), ()
        return (state if state.tracker is None else _tracked(local, state, event)), ()

    return Half(GossipState, apply, model=lambda state: {"p": state.p})


def _tracked(local: TrainingContext, state: GossipState, task: Task) -> GossipState:
    second = bool(task.values.get("turn"))
    match task.ask, task.values.get("order", DGD):
        case ["alone", _]:
            return _corrected(local, _followed(local.spec, state, task))
        case ["mix", 1.0]:
            return _mixed_in(local.spec, state, task)
        case ["adapt", 1.0]:
            return _corrected(local, state) if second else _followed(local.spec, state, task)
        case ["mix", _]:
            mixed = _mixed_in(local.spec, state, task)
            moved = _followed(local.spec, replace(state, p=mixed.p), task)
            return _corrected(local, replace(moved, tracker=mixed.tracker))
    return state


def step_length(task: Task) -> float:
    """Return the length of step number ``task.step``: divided by its square root where configured.

    >>> step_length(Task("a", 0, "mix", step=3, values={"rate": 0.1, "fading": 1.0}))
    0.05
    """
    length = float(task.values.get("rate", 0.0))
    return length / math.sqrt(task.step + 1) if task.values.get("fading") else length


def _gradient(
    local: TrainingContext, state: GossipState, at: Vector
) -> tuple[GossipState, Vector | None]:
    after = replace(state, draws=state.draws + 1)
    for batch in local.batches(1, state.draws, fresh=True):
        _, g = loss_gradient(local, at, batch)
        return after, g if bool(np.isfinite(g).all()) else None
    return after, None


def _descended(
    local: TrainingContext, state: GossipState, start: Vector, task: Task
) -> GossipState:
    """Step from ``start`` along the gradient at the state's own point."""
    after, g = _gradient(local, state, state.p)
    return replace(after, p=start if g is None else _stepped(start, g, task))


def _stepped(p: Vector, g: Vector, task: Task) -> Vector:
    """Return the parameters after the step of a task along ``g``."""
    return optimiser_step(scale(-step_length(task)), p, g, {})[0]


def _tracking_anew(local: TrainingContext, state: GossipState) -> GossipState:
    after, g = _gradient(local, state, state.p)
    seen = np.zeros_like(state.p) if g is None else g.astype(state.p.dtype)
    return replace(after, seen=seen, tracker=local.spec.shared(seen).copy())


def _corrected(local: TrainingContext, state: GossipState) -> GossipState:
    after, g = _gradient(local, state, state.p)
    if g is None or state.seen is None or state.tracker is None:
        return after
    g = g.astype(state.p.dtype)
    change = local.spec.shared(g).astype(np.float64) - local.spec.shared(state.seen)
    tracker = (state.tracker + change).astype(state.p.dtype)
    return replace(after, seen=g, tracker=tracker)


def _followed(spec: ParamSpec, state: GossipState, task: Task) -> GossipState:
    assert state.seen is not None
    assert state.tracker is not None
    along = spec.place(state.seen, state.tracker)
    return replace(state, p=_stepped(state.p, along, task))


def _mixed(spec: ParamSpec, state: GossipState, task: Task) -> Vector:
    own = spec.shared(state.p)
    received, weights = task.arrays[THETA], task.arrays["weights"]
    return spec.place(state.p, mix(own, received, weights, task.values))


def _mixed_in(spec: ParamSpec, state: GossipState, task: Task) -> GossipState:
    if THETA in task.arrays:
        state = replace(state, p=_mixed(spec, state, task))
    if TRACKER in task.arrays and state.tracker is not None:
        received, weights = task.arrays[TRACKER], task.arrays["weights"]
        state = replace(state, tracker=mix(state.tracker, received, weights, {}))
    return state
