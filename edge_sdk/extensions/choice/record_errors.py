"""Compare the candidates on the newest part of an old record, at the first choice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from edge_sdk.extensions.choice.candidates import CandidateModels
from edge_sdk.extensions.choice.combination import LEAST, HeldBackErrors
from edge_sdk.forecasting.calendar_features import DAY
from edge_sdk.methods.local_sgd import LocalState
from edge_sdk.training.model_runtime import ModelRuntime

MOST: Final = 28
"""Most days that are compared: the newest ones."""
SHARE: Final = 0.25
"""Share of the record that is compared, but for ``LEAST`` and ``MOST`` days."""
SHORTEST: Final = 3 * LEAST
"""Days of record below which nothing is compared: the models would have less than two weeks."""


def record_errors(
    learner: ModelRuntime,
    state: Any,  # noqa: ANN401 - the half's own type
    models: CandidateModels,
) -> HeldBackErrors | None:
    """Return the errors on the newest part of the record; None for a short record.

    A tuned copy and the last good model have none: both were chosen by that part. A device's solution in
    closed form is solved again without it.

    Args:
        learner: Bundle and readings. Its ``between_batches`` may raise: then nothing has changed.
    """
    frame, p = learner.frame(), learner.vector(state)
    origins, step = frame.origins(), frame.window.step_seconds
    if not len(origins) or (origins[-1] - origins[0]) * step < SHORTEST * DAY:
        return None
    rows = len(frame) * SHARE
    rows = min(max(rows, LEAST * DAY / step), MOST * DAY / step)
    late = origins[origins >= len(frame) - 1 - rows]
    early = origins[origins + frame.window.horizon < late.min(initial=len(frame))]
    if not len(early) or not len(late):
        return None  # a long gap
    is_alone = isinstance(state, LocalState)
    p = learner.form.solved(frame, p, models.common, early, is_alone=is_alone)
    plain = replace(models, tuned=None, is_tuned=False, good=None)
    try:
        again = plain.refitted(p, frame, early, learner.between_batches)
    except MemoryError:
        again = replace(plain, boosted=None).refitted(p, frame, early)
    if models.own is None:
        again = replace(again, own=None)
    return again.compared_on(p, frame, late)
