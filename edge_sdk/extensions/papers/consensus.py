"""Train with a penalty towards a consensus: the device half of BAFDP, RSA and related methods.

A device keeps its own weights. The consensus z enters as a penalty on the shared ones: by an l1
term (RSA, BAFDP), by a quadratic one (ASPIRE-EASE), and by a dual that both ends compute
(``edge_sdk.extensions.papers.consensus_dual``). Personal layers have no penalty and stay on the device.

Interpretation of BAFDP where its text is inconsistent: (18) prints ``+ psi sign(z - w)``, which
pushes weights away from the consensus, and applies it beside a gradient that contains the same
term; here the gradient is of the smooth part alone and the l1 term is taken once, as its proximal
step or its subgradient (``l1_mode``). Algorithm 1 keeps the dual on
the devices and leaves it out of every message, although the server's (20) needs it: here both ends
compute it.

RSA's published code (github.com/Liepill/RSA-Byzantine, read in full) divides the device's gradient
by the number of machines and leaves the l1 term whole; that equals this RSA with an l1 weight
larger by that factor and a rate smaller by it. Its server uses the weights just received.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from edge_sdk.extensions.papers.consensus_dual import dual_digest, next_dual
from edge_sdk.extensions.papers.proximal_step import consensus_pull, dual_ascent, l1_penalty
from edge_sdk.extensions.papers.wasserstein_radius import WassersteinGuard
from edge_sdk.methods.local_sgd import LocalSgd, answer, loss_gradient, train
from edge_sdk.methods.training_context import Batch, TrainingContext
from edge_sdk.protocol.contract.method import END, Array, Effects, Event, Half, Task
from edge_sdk.protocol.contract.parameter_layout import ParamSpec, Vector
from edge_sdk.shared_math.optim import State, chain, saved

Content = Literal["weights", "signs", "difference"]
"""Content of the answer: the shared weights, the signs of ``z - w``, or ``z - w`` itself.

A privacy mechanism at the sign turns ``z - w`` into noisy signs; no sign encoding can hold it.
"""


@dataclass(frozen=True, slots=True, eq=False)
class ConsensusState:
    """State of a device: its model, dual and budget."""

    p: Vector  # whole vector, personal layers included
    # dual of its shared layers; zeros until a firing has counted an answer of this device
    dual: Vector
    eps: float = 0.0  # BAFDP's moving budget; 0 before the first task
    answered: int = 0
    moments: State | None = None

    def arrays(self) -> dict[str, Array]:
        """Return the state as named arrays, to be saved; ``from_arrays`` is the inverse."""
        out: dict[str, Array] = {"p": self.p, "dual": self.dual}
        out |= {"eps": np.array(self.eps), "answered": np.array(self.answered)}
        return out | dict(self.moments or {})

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> ConsensusState:
        """Rebuild a state from the result of ``arrays``."""
        eps, answered = float(arrays["eps"]), int(arrays["answered"])
        return cls(arrays["p"], arrays["dual"], eps, answered, saved(arrays))


def consensus_half(
    local: TrainingContext, settings: LocalSgd, content: Content = "weights"
) -> Half[ConsensusState]:
    """Answer ``step`` with the weights after local steps under the task's penalty.

    The first task of all sets the weights to the consensus, unless ``settings.start`` is ``own``. A
    device without windows answers nothing. One whose weights became non-finite returns to the
    consensus and answers with that, which exerts no pull.
    """
    spec = local.spec

    def apply(state: ConsensusState, event: Event) -> tuple[ConsensusState, Effects]:
        match event:
            case Task(ask="step", arrays={"z": z}) if z.shape == (spec.shared_size,):
                return _answered(local, settings, state, event, content)
            case Task(ask=ask, arrays={"w": w}) if ask == END and w.shape == (spec.shared_size,):
                return replace(state, p=spec.place(state.p, w)), ()
        return state, ()

    def init(p: Vector) -> ConsensusState:
        return ConsensusState(p, np.zeros(spec.shared_size, p.dtype))

    return Half(init, apply, model=lambda state: {"p": state.p})


def _answered(
    local: TrainingContext, settings: LocalSgd, state: ConsensusState, task: Task, content: Content
) -> tuple[ConsensusState, Effects]:
    spec, z = local.spec, task.arrays["z"]
    start = _start(spec, settings, state, task)
    moved, report = _activated(local, settings, start, task)
    if not report:
        return state, ()
    if not (np.isfinite(moved.p).all() and all(map(math.isfinite, report.values()))):
        moved = replace(start, p=spec.place(start.p, z), moments=None)
        report = {"n": report["n"]} | _shown(start.eps)
    is_jacobi = task.values.get("jacobi", 0.0) == 1.0
    w = spec.shared(start.p if is_jacobi else moved.p)
    every = int(task.values.get("check_every", 0.0))
    check = dual_digest(start.dual) if every and start.answered % every == 0 else b""
    update = answer(local, task, _leaving(w, z, content), report, check)
    return replace(moved, answered=start.answered + 1), (update,)


def _leaving(w: Vector, z: Vector, content: Content) -> Vector:
    if content == "weights":
        return w
    return z - w if content == "difference" else np.sign(z - w)


def _start(
    spec: ParamSpec, settings: LocalSgd, state: ConsensusState, task: Task
) -> ConsensusState:
    """Return the state before its steps: the dual updated, the first task's weights adopted.

    The server's copy of the dual has precedence where it is sent. Else, where the server counted
    the last answer, both ends take the same step; otherwise the dual restarts at both ends.
    """
    z, values = task.arrays["z"], task.values
    dual_sent = task.arrays.get("dual")
    if dual_sent is not None and dual_sent.shape == state.dual.shape:
        dual = dual_sent.astype(state.dual.dtype)
    elif values.get("counted", 0.0) == 1.0 and state.answered:
        dual = next_dual(state.dual, z, spec.shared(state.p), task.base - 1, dual_ascent(values))
    else:
        dual = np.zeros_like(state.dual)
    is_first = state.answered == 0 and settings.start == "received"
    p = spec.place(state.p, z) if is_first else state.p
    return replace(state, p=p, dual=dual, eps=state.eps or values.get("eps_start", 0.0))


def _activated(
    local: TrainingContext, settings: LocalSgd, state: ConsensusState, task: Task
) -> tuple[ConsensusState, dict[str, float]]:
    """Take the local steps, then the step of the budget at the new weights; no report without windows."""
    values, spec, z, eps = task.values, local.spec, task.arrays["z"], state.eps
    steps, rate = int(values.get("steps", 1.0)), settings.rate_of(values)
    if not steps:
        return state, {}
    pull = consensus_pull(spec, z, state.dual, values.get("prox", 0.0), values.get("weight", 1.0))
    trained = train(
        local,
        chain(pull, settings.optimiser_of(values)),
        state.p,
        state.moments,
        steps=steps,
        of_round=task.round,
        gradient=lambda p, batch: _slope(local, task, p, batch, eps)[:2],
        after=l1_penalty(spec, z, rate * values.get("l1", 0.0), values.get("l1_mode", 0.0)),
    )
    if trained.batch is None:
        return state, {}
    if eps > 0.0:
        slope = _slope(local, task, trained.p, trained.batch, eps)[2]
        guard = _guard(local, task, trained.batch)
        eps = guard.next_eps(guard.clipped(eps), slope)
    after = replace(state, p=trained.p, eps=eps, moments=trained.moments)
    return after, trained.report | _shown(eps)


def _guard(local: TrainingContext, task: Task, batch: Batch) -> WassersteinGuard:
    return WassersteinGuard.of(task.values, local.count, batch.x[0].size + batch.y[0].size)


def _slope(
    local: TrainingContext, task: Task, p: Vector, batch: Batch, eps: float
) -> tuple[float, Vector, float]:
    """Return loss, gradient of ``loss + rho G``, and G; without a regulariser G is 0."""
    if task.values.get("regulariser", 0.0) == 0.0:
        return *loss_gradient(local, p, batch), 0.0
    weight = np.asarray(_guard(local, task, batch).rho(eps), p.dtype)
    loss, g, slope = local.run("robust_gradient", p=p, x=batch.x, y=batch.y, rho=weight)
    return float(loss), g, float(slope)


def _shown(eps: float) -> dict[str, float]:
    return {"eps": eps} if eps > 0.0 else {}


signs_half = partial(consensus_half, content="signs")
difference_half = partial(consensus_half, content="difference")
