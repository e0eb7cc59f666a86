"""Ditto, APFL, FedRep and FedBABU on a device: FedAvg's answer, and a model of the device's own beside it.

A device answers as in FedAvg and never sends its own model, so aggregation, rules and noise are
those of FedAvg. It forecasts with its own model; the fleet's stands beside it as a candidate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.methods.local_sgd import (
    LocalSgd,
    LocalState,
    answer,
    fedavg,
    loss_gradient,
    received_model,
    train,
)
from edge_sdk.methods.training_context import TrainingContext
from edge_sdk.protocol.contract.method import END, Array, Effects, Event, Half, Task
from edge_sdk.protocol.contract.parameter_layout import ParamSpec, Vector
from edge_sdk.shared_math.optim import Transform, add_proximal, chain, optimiser_step, stateless


@dataclass(frozen=True, slots=True, eq=False)
class PersonalCopy:
    """State of a device."""

    p: Vector  # the copy that takes part in the fleet, a whole vector
    own: Vector | None = None  # the device's own model; None before its first round
    share: float = 1.0  # of the own model in the forecast; APFL adapts it

    @property
    def personal(self) -> Vector:
        if self.own is None:
            return self.p
        return mixed(self.own, self.p, self.share)

    def arrays(self) -> dict[str, Array]:
        """Return the state as named arrays, to be saved; ``from_arrays`` is the inverse."""
        own = {} if self.own is None else {"own": self.own}
        return {"p": self.p, "share": np.array(self.share), **own}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> PersonalCopy:
        """Rebuild a state from the result of ``arrays``."""
        return cls(arrays["p"], arrays.get("own"), float(arrays["share"]))

    def model(self) -> dict[str, Array]:
        return {"p": self.personal, "fleet": self.p}


def mixed(own: Vector, fleet: Vector, share: float) -> Vector:
    """Return ``share own + (1 - share) fleet``, float32.

    >>> mixed(np.ones(1, np.float32), np.zeros(1, np.float32), 0.25).tolist()
    [0.25]
    """
    return own if share == 1.0 else (share * own + (1.0 - share) * fleet).astype(np.float32)


def ditto(local: TrainingContext, settings: LocalSgd) -> Half[PersonalCopy]:
    """Also take ``own_steps`` steps on the own model, pulled by ``pull`` to the received one.

    Reference:
        Li, Hu, Beirami and Smith, Ditto: Fair and Robust Federated Learning Through
        Personalization, ICML 2021, algorithm 1.
    """
    half = fedavg(local, settings)

    def apply(state: PersonalCopy, event: Event) -> tuple[PersonalCopy, Effects]:
        after, effects = half.apply(LocalState(state.p), event)
        received = received_model(event, local.spec)
        if received is None or not isinstance(event, Task):
            return state, ()
        if event.ask == END or not effects:
            return replace(state, p=after.p), effects
        begin = local.spec.place(state.p, received) if state.own is None else state.own
        pull = add_proximal(local.spec, float(event.values.get("pull", 0.0)), received)
        trained = train(
            local,
            chain(pull, settings.optimiser_of(event.values)),
            begin,
            None,
            steps=int(event.values.get("own_steps", 0)),
            of_round=event.round,
            fresh=settings.minibatch == "fresh",
        )
        return PersonalCopy(after.p, trained.p if trained.is_finite else begin), effects

    return Half(PersonalCopy, apply, model=PersonalCopy.model)


def apfl(local: TrainingContext, settings: LocalSgd) -> Half[PersonalCopy]:
    """Train an own model inside its mixture with the fleet's copy, and adapt the share of it.

    The share moves once a round, along the first minibatch's slope, and stays within 0 and 1.

    Reference:
        Deng, Kamani and Mahdavi, Adaptive Personalized Federated Learning, 2020, algorithm 1 and
        equation (10).
    """

    def apply(state: PersonalCopy, event: Event) -> tuple[PersonalCopy, Effects]:
        received = received_model(event, local.spec)
        if received is None or not isinstance(event, Task):
            return state, ()
        placed = local.spec.place(state.p, received)
        if event.ask == END:
            return replace(state, p=placed), ()
        share = state.share if state.own is not None else float(event.values.get("share", 1.0))
        begun = PersonalCopy(placed, placed if state.own is None else state.own, share)
        return _apfl_round(local, settings, begun, event)

    return Half(PersonalCopy, apply, model=PersonalCopy.model)


def _apfl_round(
    local: TrainingContext, settings: LocalSgd, begun: PersonalCopy, task: Task
) -> tuple[PersonalCopy, Effects]:
    optimiser, steps = settings.optimiser_of(task.values), settings.steps_of(task.values)
    w, v, share, used = begun.p, begun.own, begun.share, 0
    assert v is not None
    losses: list[float] = []
    moments = [optimiser.init(w), optimiser.init(v)]
    fresh = settings.minibatch == "fresh"
    for batch in local.batches(max(steps, 1), task.round, fresh=fresh):
        loss, g = loss_gradient(local, w, batch)
        _, slope = loss_gradient(local, mixed(v, w, share), batch)
        if not losses:
            rate = float(task.values.get("share_rate", 0.0))
            share = float(np.clip(share - rate * float((v - w) @ slope), 0.0, 1.0))
        losses.append(loss)
        used = used + len(batch) if fresh else len(batch)
        if steps:
            w, moments[0] = optimiser_step(optimiser, w, g, moments[0])
            v, moments[1] = optimiser_step(optimiser, v, np.float32(share) * slope, moments[1])
    found = [np.append(w, losses), np.append(v, share)]
    if not losses or not all(np.isfinite(one).all() for one in found):
        return begun, ()
    change = local.spec.shared(begun.p) - local.spec.shared(w)
    report = {"loss": float(np.mean(losses)), "n": float(used)}
    return PersonalCopy(w, v, share), (answer(local, task, change, report),)


def fedrep(local: TrainingContext, settings: LocalSgd) -> Half[LocalState]:
    """Take ``head_steps`` steps on the personal layers, then the task's steps on the shared ones.

    Reference:
        Collins, Hassani, Mokhtari and Shakkottai, Exploiting Shared Representations for
        Personalized Federated Learning, ICML 2021, algorithm 1.
    """

    def apply(state: LocalState, event: Event) -> tuple[LocalState, Effects]:
        received = received_model(event, local.spec)
        if received is None or not isinstance(event, Task):
            return state, ()
        placed = local.spec.place(state.p, received)
        if event.ask == END:
            return LocalState(placed), ()
        optimiser = settings.optimiser_of(event.values)
        fresh, head = settings.minibatch == "fresh", int(event.values.get("head_steps", 0))
        first = train(
            local,
            chain(_only_personal(local.spec), optimiser),
            placed,
            None,
            steps=head,
            of_round=event.round,
            fresh=fresh,
        )
        if not (first.report and first.is_finite):
            return LocalState(placed), ()
        second = train(
            local,
            chain(_only_shared(local.spec), optimiser),
            first.p,
            None,
            steps=settings.steps_of(event.values),
            of_round=event.round,
            fresh=fresh,
        )
        if not second.is_finite:
            return LocalState(placed), ()
        change = received - local.spec.shared(second.p)
        return LocalState(second.p), (answer(local, event, change, second.report),)

    return Half(LocalState, apply, model=lambda state: {"p": state.p})


def fedbabu(local: TrainingContext, settings: LocalSgd) -> Half[PersonalCopy]:
    """Train the shared layers under personal ones that never move; forecast with a tuned copy of both.

    The copy takes ``tune_steps`` steps on all layers from each round's model. The paper tunes once, after
    the run; a device forecasts during the run as well.

    Reference:
        Oh, Kim and Yun, FedBABU: Toward Enhanced Representation for Federated Image Classification, ICLR
        2022, algorithm 1.
    """

    def apply(state: PersonalCopy, event: Event) -> tuple[PersonalCopy, Effects]:
        received = received_model(event, local.spec)
        if received is None or not isinstance(event, Task):
            return state, ()
        placed = local.spec.place(state.p, received)
        if event.ask == END:
            return replace(state, p=placed), ()
        optimiser = settings.optimiser_of(event.values)
        steps, tune = settings.steps_of(event.values), int(event.values.get("tune_steps", 0))
        fresh, spec = settings.minibatch == "fresh", local.spec
        body = train(
            local,
            chain(_only_shared(spec), optimiser),
            placed,
            None,
            steps=steps,
            of_round=event.round,
            fresh=fresh,
        )
        if not (body.report and body.is_finite):
            return replace(state, p=placed), ()
        tuned = train(local, optimiser, body.p, None, steps=tune, of_round=event.round, fresh=fresh)
        change = received - spec.shared(body.p)
        own = tuned.p if tuned.is_finite else body.p
        return PersonalCopy(body.p, own), (answer(local, event, change, body.report),)

    return Half(PersonalCopy, apply, model=PersonalCopy.model)


def _only_shared(spec: ParamSpec) -> Transform:
    return stateless(lambda g, _p: spec.lift(spec.shared(g)))


def _only_personal(spec: ParamSpec) -> Transform:
    return stateless(lambda g, _p: g - spec.lift(spec.shared(g)))
