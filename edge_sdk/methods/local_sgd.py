"""Train with local steps: the averaging family's device half, around ``edge_sdk.shared_math.fedavg``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Literal

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.methods.training_context import Batch, TrainingContext
from edge_sdk.protocol.contract.manifest import Training
from edge_sdk.protocol.contract.method import END, Array, Effects, Event, Half, Task, Update
from edge_sdk.protocol.contract.parameter_layout import ParamSpec, Vector
from edge_sdk.shared_math import optim
from edge_sdk.shared_math.fedavg import Gradient, TrainingResult, local_steps

TRAIN = "train"
"""The ask that the halves here answer; at ``END`` they only adopt the final model."""

OPTIMISERS: Mapping[float, optim.Rated] = MappingProxyType({1.0: optim.sgd, 2.0: optim.adam})
"""Values of a task's ``optimiser``; 0 is the bundle's own."""


@dataclass(frozen=True, slots=True)
class LocalSgd:
    """Settings of the local steps. A task's ``steps``, ``rate`` and ``prox`` have precedence."""

    # function from a rate to an optimiser, e.g. ``adam`` or ``partial(sgd, momentum=0.9)``
    optimiser: optim.Rated = optim.adam
    rate: float = 1e-3  # learning rate where the task sets none
    steps: int = 4  # number of steps where the task sets none
    # weight of the proximal term towards the received model where the task sets none
    prox: float = 0.0
    # ``fixed`` reuses one minibatch for all steps of a round, ``fresh`` draws anew
    minibatch: Literal["fixed", "fresh"] = "fixed"
    # start from the ``received`` shared layers, or from the device's ``own``
    start: Literal["received", "own"] = "received"
    # whether the optimiser's moments are kept over rounds; only sensible when nothing is shared
    # (configuration 3), for these moments do not belong to a received model
    keep_moments: bool = False
    # whether the device's owner allows a coarse week of its demand in an answer
    weekly_profile: bool = False

    @classmethod
    def of(cls, training: Training) -> LocalSgd:
        """Return the settings that a bundle recommends."""
        betas = {"beta1": training.beta1, "beta2": training.beta2, "eps": training.eps}
        optimiser = partial(optim.adam, **betas) if training.optimiser == "adam" else optim.sgd
        return cls(optimiser, training.rate, training.steps, minibatch=training.minibatch)

    def rate_of(self, values: Mapping[str, float]) -> float:
        return float(values.get("rate", self.rate))

    def steps_of(self, values: Mapping[str, float]) -> int:
        return int(values.get("steps", self.steps))

    def optimiser_of(self, values: Mapping[str, float]) -> optim.Transform:
        rated = OPTIMISERS.get(values.get("optimiser", 0.0), self.optimiser)
        return rated(self.rate_of(values))


def train(
    local: TrainingContext,
    optimiser: optim.Transform,
    p: Vector,
    moments: optim.State | None,
    *,
    steps: int,
    of_round: int,
    fresh: bool = True,
    gradient: Gradient | None = None,
    after: optim.Transform = optim.IDENTITY,
) -> TrainingResult:
    """Take ``local_steps`` on a round's minibatches; a ``gradient`` of None is the bundle's own."""
    batches = local.batches(max(steps, 1), of_round, fresh=fresh)
    own = partial(loss_gradient, local) if gradient is None else gradient
    return local_steps(batches, own, optimiser, p, moments, steps=steps, fresh=fresh, after=after)


def loss_gradient(local: TrainingContext, p: Vector, batch: Batch) -> tuple[float, Vector]:
    loss, g = local.run("gradient", p=p, x=batch.x, y=batch.y)
    return float(loss), g


def answer(
    local: TrainingContext,
    task: Task,
    vector: Vector,
    report: Mapping[str, float],
    check: bytes = b"",
) -> Update:
    return Update(local.client, task.round, task.base, vector, report, check)


@dataclass(frozen=True, slots=True, eq=False)
class LocalState:
    """State of a device: its whole vector, personal layers included."""

    p: Vector
    moments: optim.State | None = None

    def arrays(self) -> dict[str, Array]:
        """Return the state as named arrays, to be saved; ``from_arrays`` is the inverse."""
        return {"p": self.p, **(self.moments or {})}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> LocalState:
        """Rebuild a state from the result of ``arrays``."""
        return cls(arrays["p"], optim.saved(arrays))


def fedavg(local: TrainingContext, settings: LocalSgd) -> Half[LocalState]:
    """Answer ``train`` with the change by local steps: received minus trained, on shared layers.

    Personal layers keep their training and are in no answer. A device without windows adopts the
    received layers and answers nothing; neither does one whose weights became non-finite, which
    keeps its earlier personal layers.
    """

    def apply(state: LocalState, event: Event) -> tuple[LocalState, Effects]:
        received = received_model(event, local.spec)
        if received is None or not isinstance(event, Task):
            return state, ()
        placed = local.spec.place(state.p, received)
        if event.ask == END:
            return replace(state, p=placed), ()
        trained = _trained(local, settings, state, placed, event)
        if not (trained.report and trained.is_finite):
            return replace(state, p=placed), ()
        change = received - local.spec.shared(trained.p)
        kept = trained.moments if settings.keep_moments else None
        return LocalState(trained.p, kept), (answer(local, event, change, trained.report),)

    return Half(LocalState, apply, model=lambda state: {"p": state.p})


def _trained(
    local: TrainingContext, settings: LocalSgd, state: LocalState, placed: Vector, task: Task
) -> TrainingResult:
    """Train for one round; a task of no steps is still answered, with the received model's loss."""
    prox = float(task.values.get("prox", settings.prox))
    pull = optim.add_proximal(local.spec, prox, local.spec.shared(placed))
    return train(
        local,
        optim.chain(pull, settings.optimiser_of(task.values)),
        placed if settings.start == "received" else state.p,
        state.moments if settings.keep_moments else None,
        steps=settings.steps_of(task.values),
        of_round=task.round,
        fresh=settings.minibatch == "fresh",
    )


def received_model(event: Event, spec: ParamSpec) -> Vector | None:
    """Return the shared layers in a task or an end, or None where they have another shape."""
    if not isinstance(event, Task) or event.ask not in (TRAIN, END):
        return None
    w = event.arrays.get("w")
    return w if w is not None and w.shape == (spec.shared_size,) else None


def fedsgd(local: TrainingContext, settings: LocalSgd) -> Half[LocalState]:
    """Answer ``train`` with the gradient at the received model (FedSGD); shared layers stay.

    The server does not update personal layers: they take the same step here, at the task's rate.
    """

    def apply(state: LocalState, event: Event) -> tuple[LocalState, Effects]:
        received = received_model(event, local.spec)
        if received is None or not isinstance(event, Task):
            return state, ()
        p = local.spec.place(state.p, received)
        for batch in () if event.ask == END else local.batches(1, event.round, fresh=True):
            loss, g = loss_gradient(local, p, batch)
            plain = optim.sgd(settings.rate_of(event.values))
            trained = TrainingResult(
                *optim.optimiser_step(plain, p, g, plain.init(p)),
                {"loss": loss, "n": float(len(batch))},
            )
            if not trained.is_finite:
                break
            after = LocalState(local.spec.place(trained.p, received))
            return after, (answer(local, event, local.spec.shared(g), trained.report),)
        return replace(state, p=p), ()

    return Half(LocalState, apply, model=lambda state: {"p": state.p})
