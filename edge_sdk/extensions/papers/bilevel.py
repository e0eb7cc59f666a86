"""Train with a penalty on a map of the neighbours' models, and solve with the local curvature.

This is BiG-FL's device half. A device minimises its loss plus ``s/2 |r|² + kappa/2 |theta|²`` with
``r = (c + L_ii theta) phi - theta``: c is the weighted sum of its neighbours' models, constant
during the round, phi the map that the server learns. Models are rows; personal layers have no
penalty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from edge_sdk.extensions.papers.bilevel_map import Basis, unpack_map
from edge_sdk.extensions.papers.conjugate_gradient import (
    Product,
    Solution,
    conjugate_gradients,
    largest_eigenvalue,
    neumann_series,
)
from edge_sdk.methods.local_sgd import TRAIN, LocalSgd, answer, train
from edge_sdk.methods.training_context import Batch, TrainingContext
from edge_sdk.protocol.contract.method import END, Array, Effects, Event, Half, Scalars, Task
from edge_sdk.protocol.contract.parameter_layout import ParamSpec, Vector
from edge_sdk.shared_math.fedavg import TrainingResult
from edge_sdk.shared_math.optim import chain, stateless

SOLVE = "solve"
NEUMANN = 1.0
"""Value of a task's ``solver`` for the Neumann series; 0 is conjugate gradients."""

Wide = NDArray[np.float64]
_FORM = ("form", "begin", "side")
_EMPTY = np.zeros((0, 0), np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class BilevelState:
    """State of a device: its model, and the map it was trained under."""

    p: Vector
    answered: int = 0  # last round of the lower level that it answered; 0 before any
    # ``form``, ``begin`` and ``side`` of that task, which define the layout of the rows
    form: tuple[float, ...] = (0.0, 0.0, 0.0)
    # rows of the map as received; empty for the identity
    rows: Array = field(default_factory=lambda: _EMPTY)

    def arrays(self) -> dict[str, Array]:
        """Return the state as named arrays, to be saved; ``from_arrays`` is the inverse."""
        answered = np.array(self.answered)
        return {"p": self.p, "answered": answered, "form": np.array(self.form), "rows": self.rows}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> BilevelState:
        """Rebuild a state from the result of ``arrays``."""
        form = tuple(map(float, arrays["form"]))
        return cls(arrays["p"], int(arrays["answered"]), form, arrays["rows"])


@dataclass(frozen=True, slots=True, eq=False)
class BilevelPenalty:
    """Graph and ridge penalty of a device's objective."""

    basis: Basis  # map phi
    own: float  # coefficient L_ii
    smooth: float  # weight s of the graph penalty
    ridge: float  # weight kappa of the ridge penalty

    def slope(self, theta: Wide, c: Wide) -> Wide:
        """Return ``s r (L_ii phi' - I) + kappa theta``.

        >>> from edge_sdk.extensions.papers.bilevel_map import Diagonal
        >>> lean = BilevelPenalty(Diagonal(np.ones(2)), own=0.5, smooth=1.0, ridge=0.0)
        >>> lean.slope(np.array([1.0, 0.0]), np.array([0.0, 0.40824829])).round(8).tolist()
        [0.25, -0.20412414]
        """
        rest = self.basis.forth((c + self.own * theta)[None])[0] - theta
        slope: Wide = self.smooth * self._tilted_back(rest) + self.ridge * theta
        return slope

    def curved(self, v: Wide) -> Wide:
        """Return the product of its second derivative with a vector: ``s v M M' + kappa v``."""
        tilted = self.own * self.basis.forth(v[None])[0] - v
        product: Wide = self.smooth * self._tilted_back(tilted) + self.ridge * v
        return product

    def _tilted_back(self, x: Wide) -> Wide:
        tilted: Wide = self.own * self.basis.back(x[None])[0] - x
        return tilted


def bilevel_half(local: TrainingContext, settings: LocalSgd) -> Half[BilevelState]:
    """Answer ``train`` with the weights after local steps, and ``solve`` with ``q``.

    Steps start at the device's own model, over fresh minibatches. ``solve`` asks for ``(H + delta)
    q = p`` at the model that was answered last, where H is the curvature of the whole objective; a
    device whose model has changed since (its store was lost) answers nothing. At the end of the
    run, a device that has answered keeps its own model.
    """
    spec = local.spec

    def apply(state: BilevelState, event: Event) -> tuple[BilevelState, Effects]:
        match event:
            case Task(ask=ask, arrays={"c": c}) if ask == TRAIN and _fits(c, spec):
                return _trained(local, settings, state, event)
            case Task(ask=ask, arrays={"p": p}) if ask == SOLVE and _fits(p, spec):
                return state, _solved(local, state, event)
            case Task(ask=ask, arrays={"w": w}) if ask == END and _fits(w, spec):
                return (state if state.answered else replace(state, p=spec.place(state.p, w))), ()
        return state, ()

    return Half(BilevelState, apply, model=lambda state: {"p": state.p})


def _fits(vector: Array, spec: ParamSpec) -> bool:
    return vector.shape == (spec.shared_size,)


def _lean(
    form: tuple[float, ...], rows: Array, values: Scalars, width: int
) -> BilevelPenalty | None:
    numbers = dict(zip(_FORM, form, strict=True))
    basis = unpack_map(numbers, rows if len(rows) else None, width)
    if basis is None:
        return None
    own, smooth = values.get("own", 1.0), values.get("smooth", 0.0)
    return BilevelPenalty(basis, own, smooth, values.get("ridge", 0.0))


def _trained(
    local: TrainingContext, settings: LocalSgd, state: BilevelState, task: Task
) -> tuple[BilevelState, Effects]:
    values, spec = task.values, local.spec
    form = tuple(float(values.get(name, 0.0)) for name in _FORM)
    rows = task.arrays.get("phi", _EMPTY)
    lean = _lean(form, rows, values, spec.shared_size)
    if lean is None:
        return state, ()
    with np.errstate(over="ignore", invalid="ignore"):  # the device then answers nothing
        trained = _stepped(local, settings, state.p, task, lean)
    if not (trained.report and trained.is_finite):
        return state, ()
    update = answer(local, task, spec.shared(trained.p), trained.report)
    return BilevelState(trained.p, task.round, form, rows), (update,)


def _stepped(
    local: TrainingContext, settings: LocalSgd, p: Vector, task: Task, lean: BilevelPenalty
) -> TrainingResult:
    spec, c = local.spec, np.asarray(task.arrays["c"], np.float64)

    def penalised(g: Vector, p: Vector) -> Vector:
        return g + spec.lift(lean.slope(spec.shared(p).astype(np.float64), c).astype(p.dtype))

    return train(
        local,
        chain(stateless(penalised), settings.optimiser_of(task.values)),
        p,
        None,
        steps=settings.steps_of(task.values),
        of_round=task.round,
    )


def _solved(local: TrainingContext, state: BilevelState, task: Task) -> Effects:
    """Answer with q; with nothing without a curvature, or at another model."""
    values, spec = task.values, local.spec
    if not state.answered or values.get("of", float(state.answered)) != state.answered:
        return ()
    lean = _lean(state.form, state.rows, values, spec.shared_size)
    batches = list(local.batches(int(values.get("batches", 1.0)), task.round, fresh=True))
    if lean is None or not batches:
        return ()
    product = _curvature(local, state.p, batches, lean, float(values.get("damping", 0.0)))
    p = np.asarray(task.arrays["p"], np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        q = _found(product, p, values).astype(np.float32)
    if not np.isfinite(q).all():
        return ()
    return (answer(local, task, q, {"n": float(sum(map(len, batches)))}),)


def _curvature(
    local: TrainingContext, p: Vector, batches: list[Batch], lean: BilevelPenalty, damping: float
) -> Product:
    spec = local.spec

    def product(v: Wide) -> Wide:
        lifted, total = spec.lift(v.astype(np.float32)), np.zeros_like(v)
        for batch in batches:
            (curved,) = local.run("hvp", p=p, x=batch.x, y=batch.y, v=lifted)
            total = total + spec.shared(curved)
        return total / len(batches) + lean.curved(v) + damping * v

    return product


def _found(product: Product, p: Wide, values: Scalars) -> Wide:
    count = int(values.get("iterations", 10.0))
    if values.get("solver", 0.0) == NEUMANN:
        step = float(values.get("step", 0.0)) or 0.9 / max(largest_eigenvalue(product, p), 1e-12)
        return neumann_series(product, p, count, step).q
    found: Solution = conjugate_gradients(product, p, count, float(values.get("tolerance", 1e-3)))
    if found.why == "negative" and not found.q.any():
        return p / float(values.get("curvature", 1.0))
    return found.q
