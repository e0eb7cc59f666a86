"""FedAvg on a device; ``aggregator.methods.fedavg`` is the other half, with an example of both.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.methods.local_sgd import TRAIN, LocalSgd, TrainingResult, answer, loss_gradient, train
from edge_sdk.methods.training_context import TrainingContext
from edge_sdk.protocol.contract.method import END, Array, Effects, Event, Half, Task
from edge_sdk.protocol.contract.parameter_layout import ParamSpec, Vector
from edge_sdk.shared_math.optim import State, add_proximal, chain, optimiser_step, saved, sgd


@dataclass(frozen=True, slots=True, eq=False)
class LocalState:
    """State of a device: its whole vector, personal layers included."""

    p: Vector
    moments: State | None = None

    def arrays(self) -> dict[str, Array]:
        """Return the state as named arrays, to be saved; ``from_arrays`` is the inverse."""
        return {"p": self.p, **(self.moments or {})}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> LocalState:
        """Rebuild a state from the result of ``arrays``."""
        return cls(arrays["p"], saved(arrays))


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
    pull = add_proximal(local.spec, prox, local.spec.shared(placed))
    return train(
        local,
        chain(pull, settings.optimiser_of(task.values)),
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
            plain = sgd(settings.rate_of(event.values))
            trained = TrainingResult(
                *optimiser_step(plain, p, g, plain.init(p)), {"loss": loss, "n": float(len(batch))}
            )
            if not trained.is_finite:
                break
            after = LocalState(local.spec.place(trained.p, received))
            return after, (answer(local, event, local.spec.shared(g), trained.report),)
        return replace(state, p=p), ()

    return Half(LocalState, apply, model=lambda state: {"p": state.p})
