"""SCAFFOLD's device half: local steps corrected by control variates, one of which it keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from edge_sdk.methods.local_sgd import LocalSgd, answer, train
from edge_sdk.methods.training_context import TrainingContext
from edge_sdk.protocol.contract.method import END, Array, Effects, Event, Half, Task
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.shared_math.optim import chain, sgd, stateless


@dataclass(frozen=True, slots=True, eq=False)
class ControlState:
    """State of a device, saved with every answer.

    Attributes:
        p: Whole vector.
        control: Control variate of the shared layers, shape ``(shared,)``.
        next_control: The one after the last answer; it holds once that answer is used.
        base: Version of the model that the last answer started from; -1 if none is open.
    """

    p: Vector
    control: Vector
    next_control: Vector
    base: int = -1

    def arrays(self) -> dict[str, Array]:
        """Return the state as named arrays, to be saved; ``from_arrays`` is the inverse."""
        return {
            "p": self.p,
            "control": self.control,
            "next_control": self.next_control,
            "base": np.array(self.base),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> ControlState:
        """Rebuild a state from what ``arrays`` returned.

        Raises:
            KeyError: An array is missing.
        """
        return cls(arrays["p"], arrays["control"], arrays["next_control"], int(arrays["base"]))


def scaffold(local: TrainingContext, settings: LocalSgd) -> Half[ControlState]:
    """Answer ``train`` with received minus trained, after plain steps along g - c_i + c.

    Personal layers are trained without a correction and stay on the device. A control variate is
    adopted when a later task says that the answer was used; an abandoned round or a late answer
    changes none. A device without windows answers nothing.
    """
    spec = local.spec

    def init(p: Vector) -> ControlState:
        none = np.zeros(spec.shared_size, np.float32)
        return ControlState(p, none, none)

    def apply(state: ControlState, event: Event) -> tuple[ControlState, Effects]:
        if not isinstance(event, Task) or event.ask not in ("train", END):
            return state, ()
        w = event.arrays.get("w")
        if w is None or w.shape != (spec.shared_size,):
            return state, ()
        if event.ask == END:
            return replace(state, p=spec.place(state.p, w)), ()
        if state.base >= 0 and event.values.get("counted", 0.0) == state.base + 1:
            state = replace(state, control=state.next_control, base=-1)
        return _answered(local, settings, state, event)

    return Half(init, apply, model=lambda state: {"p": state.p})


def _answered(
    local: TrainingContext,
    settings: LocalSgd,
    state: ControlState,
    task: Task,
) -> tuple[ControlState, Effects]:
    spec, rate, w = local.spec, settings.rate_of(task.values), task.arrays["w"]
    c = task.arrays.get("c", np.zeros_like(w))
    steps, placed = settings.steps_of(task.values), local.spec.place(state.p, w)
    if not (steps and rate):
        return replace(state, p=placed), ()
    correction = spec.lift(c - state.control)
    corrected = chain(stateless(lambda g, _p: g + correction), sgd(rate))
    trained = train(local, corrected, placed, None, steps=steps, of_round=task.round)
    change = w - spec.shared(trained.p)
    moved = state.control - c + change / np.float32(steps * rate)
    if not (trained.report and trained.is_finite and np.isfinite(moved).all()):
        return replace(state, p=placed), ()
    after = ControlState(trained.p, state.control, moved, task.base)
    return after, (answer(local, task, change, trained.report),)
