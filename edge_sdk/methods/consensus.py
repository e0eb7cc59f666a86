"""Train with a penalty towards a consensus: the device half of BAFDP, RSA and related methods.

A device keeps its own weights. The consensus z enters as a penalty on the shared ones: by an l1
term (RSA, BAFDP), by a quadratic one (ASPIRE-EASE), and by a dual that both ends compute
(``edge_sdk.shared_math.consensus_dual``). Personal layers have no penalty and stay on the device.

Interpretation of BAFDP where its text is inconsistent: (18) prints ``+ psi sign(z - w)``, which
pushes weights away from the consensus, and applies it beside a gradient that contains the same
term; here the gradient is of the smooth part alone and the l1 term is taken once, as its proximal
step or its subgradient (``l1_mode``; ``away`` is the printed sign). Algorithm 1 keeps the dual on
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
from typing import Literal

import numpy as np

from edge_sdk.methods.local_sgd import LocalSgd
from edge_sdk.methods.optim import Optimiser, OptimiserState
from edge_sdk.methods.proximal_step import OPTIMISERS, ProximalStep, ascent
from edge_sdk.methods.training_context import Batch, TrainingContext
from edge_sdk.methods.wasserstein_radius import WassersteinGuard
from edge_sdk.shared_math.consensus_dual import check, next_dual
from edge_sdk.wire.contract.method import END, Array, Effects, Event, Half, Task, Update
from edge_sdk.wire.contract.parameter_layout import ParamSpec, Vector

Answer = Literal["weights", "signs", "difference"]
"""Content of the answer: the shared weights, the signs of ``z - w``, or ``z - w`` itself.

A privacy mechanism at the sign turns ``z - w`` into noisy signs; no sign encoding can hold it.
"""


@dataclass(frozen=True, slots=True, eq=False)
class ConsensusState:
    """State of a device: its model, dual and budget.

    Attributes:
        p: Whole vector, personal layers included.
        dual: Dual of its shared layers; zeros until a firing has counted an answer of this device.
        eps: BAFDP's moving budget; 0 before the first task.
        answered: Number of its answers.
        moments: Moments of its optimiser.
    """

    p: Vector
    dual: Vector
    eps: float = 0.0
    answered: int = 0
    moments: OptimiserState | None = None

    def arrays(self) -> dict[str, Array]:
        """Return the state as named arrays, to be saved; ``from_arrays`` is the inverse."""
        out: dict[str, Array] = {"p": self.p, "dual": self.dual}
        out |= {"eps": np.array(self.eps), "answered": np.array(self.answered)}
        if self.moments is not None:
            taken, first, second = self.moments
            out |= {"taken": np.array(taken), "first": first, "second": second}
        return out

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> ConsensusState:
        """Rebuild a state from what ``arrays`` returned.

        Raises:
            KeyError: An array is missing.
        """
        eps, answered = float(arrays["eps"]), int(arrays["answered"])
        if "taken" not in arrays:
            return cls(arrays["p"], arrays["dual"], eps, answered)
        moments = OptimiserState(int(arrays["taken"]), arrays["first"], arrays["second"])
        return cls(arrays["p"], arrays["dual"], eps, answered, moments)


def pulled(
    local: TrainingContext, settings: LocalSgd, answer: Answer = "weights"
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
                return _answered(local, settings, state, event, answer)
            case Task(ask=ask, arrays={"w": w}) if ask == END and w.shape == (spec.shared_size,):
                return replace(state, p=spec.place(state.p, w)), ()
        return state, ()

    def init(p: Vector) -> ConsensusState:
        return ConsensusState(p, np.zeros(spec.shared_size, p.dtype))

    return Half(init, apply, model=lambda state: {"p": state.p})


def _answered(
    local: TrainingContext, settings: LocalSgd, state: ConsensusState, task: Task, answer: Answer
) -> tuple[ConsensusState, Effects]:
    spec, z = local.spec, task.arrays["z"]
    begun = _begun(spec, settings, state, task)
    moved, report = _activated(local, settings, begun, task)
    if not report:
        return state, ()
    if not (np.isfinite(moved.p).all() and all(map(math.isfinite, report.values()))):
        moved = replace(begun, p=spec.place(begun.p, z), moments=None)
        report = {"n": report["n"]} | _shown(begun.eps)
    is_jacobi = task.values.get("jacobi", 0.0) == 1.0
    w = spec.shared(begun.p if is_jacobi else moved.p)
    every = int(task.values.get("check_every", 0.0))
    said = check(begun.dual) if every and begun.answered % every == 0 else b""
    update = Update(local.client, task.round, task.base, _leaving(w, z, answer), report, said)
    return replace(moved, answered=begun.answered + 1), (update,)


def _leaving(w: Vector, z: Vector, answer: Answer) -> Vector:
    if answer == "weights":
        return w
    return z - w if answer == "difference" else np.sign(z - w)


def _begun(
    spec: ParamSpec, settings: LocalSgd, state: ConsensusState, task: Task
) -> ConsensusState:
    """Return the state before its steps: the dual updated, the first task's weights adopted.

    The server's copy of the dual has precedence where it is sent. Else, where the server counted
    the last answer, both ends take the same step; otherwise the dual restarts at both ends.
    """
    z, asked = task.arrays["z"], task.values
    told = task.arrays.get("dual")
    if told is not None and told.shape == state.dual.shape:
        dual = told.astype(state.dual.dtype)
    elif asked.get("counted", 0.0) == 1.0 and state.answered:
        dual = next_dual(state.dual, z, spec.shared(state.p), task.base - 1, ascent(asked))
    else:
        dual = np.zeros_like(state.dual)
    is_first = state.answered == 0 and settings.start == "received"
    p = spec.place(state.p, z) if is_first else state.p
    return replace(state, p=p, dual=dual, eps=state.eps or asked.get("eps_start", 0.0))


def _activated(
    local: TrainingContext, settings: LocalSgd, state: ConsensusState, task: Task
) -> tuple[ConsensusState, dict[str, float]]:
    """Take the local steps, then the budget's at the new weights; no report without windows."""
    asked, p, eps = task.values, state.p, state.eps
    pull = _pull(local.spec, settings, state, task)
    moments, losses, used, guard = _fitting(pull.optimiser, state), [], 0, None
    for batch in local.batches(int(asked.get("steps", 1.0)), task.round, fresh=True):
        guard = WassersteinGuard.of(asked, local.count, batch.x[0].size + batch.y[0].size)
        loss, g, _ = _slope(local, task, p, batch, guard.rho(eps))
        p, moments = pull.step(p, g, moments)
        losses.append(loss)
        used += len(batch)
    if guard is None:
        return state, {}
    if eps > 0.0:
        slope = _slope(local, task, p, batch, guard.rho(eps))[2]
        eps = guard.next_eps(guard.clipped(eps), slope)
    report = {"loss": float(np.mean(losses)), "n": float(used)} | _shown(eps)
    return replace(state, p=p, eps=eps, moments=moments), report


def _pull(spec: ParamSpec, settings: LocalSgd, state: ConsensusState, task: Task) -> ProximalStep:
    asked = task.values
    rate = float(asked.get("rate", settings.rate))
    rated = OPTIMISERS.get(asked.get("optimiser", 0.0), settings.optimiser)
    return ProximalStep(
        spec,
        rated(rate),
        task.arrays["z"],
        state.dual,
        reach=rate * asked.get("l1", 0.0),
        mode=asked.get("l1_mode", 0.0),
        prox=asked.get("prox", 0.0),
        weight=asked.get("weight", 1.0),
    )


def _fitting(optimiser: Optimiser, state: ConsensusState) -> OptimiserState:
    """Return the moments of earlier steps, or fresh ones where another optimiser made them."""
    fresh, kept = optimiser.init(state.p), state.moments
    is_same = kept is not None and (kept.first.shape, kept.second.shape) == (
        fresh.first.shape,
        fresh.second.shape,
    )
    return kept if kept is not None and is_same else fresh


def _slope(
    local: TrainingContext, task: Task, p: Vector, batch: Batch, rho: float
) -> tuple[float, Vector, float]:
    """Return loss, gradient of ``loss + rho G``, and G; without a regulariser G is 0."""
    if task.values.get("regulariser", 0.0) == 0.0:
        loss, g = local.run("gradient", p=p, x=batch.x, y=batch.y)
        return float(loss), g, 0.0
    weight = np.asarray(rho, p.dtype)
    loss, g, slope = local.run("robust_gradient", p=p, x=batch.x, y=batch.y, rho=weight)
    return float(loss), g, float(slope)


def _shown(eps: float) -> dict[str, float]:
    return {"eps": eps} if eps > 0.0 else {}
