"""Keep the model that a device forecasts with beside the one that it trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self, TypeVar

import numpy as np

from edge_sdk.protocol.contract.method import Array, Scalars
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.shared_math.optim import State, saved

LAST, OWN, FLEET = 0.0, 1.0, 2.0
"""Values of a task's ``choice``: the model that a device forecasts with."""


@dataclass(frozen=True, slots=True, eq=False)
class ChosenModel:
    """Persistent state of a device that chooses between its models."""

    p: Vector  # whole vector as last answered, at which the next round starts
    answered: int = 0  # last round it answered; 0 before any
    moments: State | None = None
    kept: Vector | None = None  # chosen model, a whole vector; None while that is ``p``

    @property
    def chosen(self) -> Vector:
        return self.p if self.kept is None else self.kept

    def arrays(self) -> dict[str, Array]:
        """Return the state as named arrays, to be saved; ``from_arrays`` is the inverse."""
        kept = {} if self.kept is None else {"kept": self.kept}
        return {"p": self.p, "answered": np.array(self.answered), **kept, **(self.moments or {})}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:
        """Rebuild a state from the result of ``arrays``."""
        return cls(arrays["p"], int(arrays["answered"]), saved(arrays), arrays.get("kept"))


Chooser = TypeVar("Chooser", bound=ChosenModel)


def fleet_choice(state: Chooser, values: Scalars) -> Chooser:
    """Keep the model of the last answer if the fleet chose its round; else return the same state.

    >>> state = ChosenModel(np.ones(1, np.float32), answered=3)
    >>> fleet_choice(state, {"kept": 3.0}).kept, fleet_choice(state, {"kept": 2.0}) is state
    (array([1.], dtype=float32), True)
    """
    is_best_round = bool(state.answered) and values.get("kept", 0.0) == state.answered
    if not is_best_round or (state.kept is not None and np.array_equal(state.kept, state.p)):
        return state
    return replace(state, kept=state.p)
