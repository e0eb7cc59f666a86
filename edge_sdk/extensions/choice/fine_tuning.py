"""Tune a copy of the common model on this device's own windows; keep it only where it helps.

Every new common model is tuned for a bounded number of minibatches, on windows older than the newest
tenth of the record. That tenth is held back: the copy with the least loss on it is kept, and only if
its loss is below that of the common model. The copy is a whole vector, shared and personal layers
alike. It is a candidate for this device's forecast and nothing else: no update is computed from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import partial
from typing import Annotated

import numpy as np

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.app.schema import Between
from edge_sdk.app.settings import Duration
from edge_sdk.config import Config
from edge_sdk.extensions.choice.combination import mean_loss
from edge_sdk.forecasting.calendar_features import Ints
from edge_sdk.forecasting.forecast import fan
from edge_sdk.forecasting.windows import ChannelFrame, Drawable
from edge_sdk.methods.local_sgd import LocalSgd, train
from edge_sdk.methods.training_context import TrainingContext, keyed
from edge_sdk.protocol.contract.manifest import AIDED_FORECAST
from edge_sdk.protocol.contract.method import CONTRACTS, SERVE, Array
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.training.model_runtime import ModelRuntime


@dataclass(frozen=True, slots=True)
class FineTuningSection:
    """Tuning of a copy of every new common model on this device. The copy is never sent."""

    enabled: bool = True  # the copy is a candidate for the forecast
    steps: Annotated[int, Between(4, 65536)] = 128  # minibatches, of the bundle's size
    rate: Annotated[float, Between(1e-9, 1e3)] | None = None  # unset: the bundle's rate
    min_interval: Duration = "1h"  # shortest interval; after the last round at once
    wake_share: Annotated[float, Between(0.0, 1.0)] = 0.5  # largest share of the daily wake time


def tuning_of(config: Config) -> FineTuningSection:
    """Return the device's section, or the defaults."""
    found: FineTuningSection = config.extensions.get("fine_tuning", FineTuningSection())
    return found


PIECES = 4
"""Number of times that the copy is measured on held-back windows while it is tuned."""

TAIL = 0.1
"""Share of the record, its newest windows, that is held back from tuning where none is from training."""

HELD = 512
"""Most held-back windows that it is measured on: the newest ones."""


@dataclass(frozen=True, slots=True, eq=False)
class TunedModel:
    """Result of the last tuning."""

    base: bytes  # digest of the common model that was tuned
    p: Vector | None  # whole vector of the copy; None if none was better than the common model
    before: float  # loss of the common model on held-back windows, in the series' unit
    after: float  # least loss found; at most ``before``
    tunings: int  # number of tunings so far

    def arrays(self) -> dict[str, Array]:
        """Return the result as named arrays, to be saved; ``from_arrays`` is the inverse."""
        kept = {} if self.p is None else {"p": self.p}
        numbers = np.array([self.before, self.after])
        base = np.frombuffer(self.base, np.uint8)
        return {"base": base, "losses": numbers, "tunings": np.array(self.tunings), **kept}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> TunedModel:
        """Rebuild from the result of ``arrays``.

        Raises:
            ValueError: Values that no tuning gives.
        """
        before, after = arrays["losses"].tolist()
        base, tunings, p = arrays["base"].tobytes(), int(arrays["tunings"]), arrays.get("p")
        if p is not None and (p.ndim != 1 or p.dtype != np.float32 or not np.isfinite(p).all()):
            raise ValueError("tuned model: expected a vector of finite float32 numbers")
        if (
            not after <= before
            or not 1 <= tunings < 2**53
            or len(base) != hashlib.sha256().digest_size
        ):
            raise ValueError("tuned model: the losses, the count or the digest are impossible")
        return cls(base, p, before, after, tunings)


def digest_of(p: Vector) -> bytes:
    return hashlib.sha256(p.tobytes()).digest()


def why_not_tuned(config: Config, learner: ModelRuntime) -> str:
    """Return why no copy is tuned under a configuration, bundle and method; empty if one is."""
    if not tuning_of(config).enabled:
        return "switched off: fine_tuning.enabled = false"
    if learner.form.why_not_tuned:
        return learner.form.why_not_tuned
    if not learner.spec.shared_size:
        return "no layer is shared: the model is this device's own"
    return why_fleet(config, learner)


def why_fleet(config: Config, learner: ModelRuntime) -> str:
    """Return why the fleet's model is always served; empty if candidates are compared."""
    if not config.forecast.choose_best:
        return "switched off: forecast.choose_best = false"
    if AIDED_FORECAST in learner.bundle.graphs and SERVE in CONTRACTS[learner.role.method]:
        return f"method {learner.role.method} computes a part of the forecast at the aggregator"
    return ""


def tuned(learner: ModelRuntime, p: Vector, last: TunedModel | None) -> TunedModel | None:
    """Tune a copy of a common model; return None if there is nothing to tune or compare it on.

    The copy of the last tuning is kept if it is still the best on the windows held back now.

    Args:
        learner: Bundle and readings. Its ``between_batches`` may raise: then nothing has changed.
    """
    frame, section = learner.frame(), tuning_of(learner.config)
    windows, held = tuning_windows(frame, learner.config.training.holdout_fraction)
    if not len(windows) or not len(held):
        return None
    number = 1 if last is None else last.tunings + 1
    settings = LocalSgd.of(learner.manifest.training)
    local = TrainingContext(
        client=learner.config.id,
        spec=learner.spec,
        graphs=learner.bundle.graphs,
        windows=lambda: Drawable(frame, windows),
        size=learner.manifest.training.batch,
        key=partial(_drawn, learner.role.run, learner.config.id),
        turn=learner.between_batches,
    )
    loss = partial(_loss, learner, frame, held)
    optimiser = settings.optimiser_of({"rate": section.rate or settings.rate})
    copies: list[Vector] = [] if last is None or last.p is None else [last.p]
    copy, moments = p, None
    for piece in range(PIECES):
        steps = section.steps // PIECES
        turn = number * PIECES + piece
        result = train(local, optimiser, copy, moments, steps=steps, of_round=turn)
        if not result.is_finite:
            break
        copy, moments = result.p, result.moments
        copies.append(copy)
    before = loss(p)
    losses = [loss(one) for one in copies]
    best = int(np.argmin(losses)) if losses else -1
    is_better = bool(losses) and losses[best] < before
    base = digest_of(p)
    if not is_better:
        return TunedModel(base, None, before, before, number)
    return TunedModel(base, copies[best], before, losses[best], number)


def tuned_copy(learner: ModelRuntime, p: Vector) -> Vector:
    """Return the copy of a model that ``tuned`` keeps, or the model where it keeps none."""
    found = tuned(learner, p, None)
    return p if found is None or found.p is None else found.p


def tuning_windows(frame: ChannelFrame, holdout: float) -> tuple[Ints, Ints]:
    """Return the origins to tune on, and the newest ones that are held back from it.

    Args:
        holdout: Share of the record that the device does not train on; 0 holds back ``TAIL``.
    """
    if not len(frame):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    begin = 1.0 - (holdout or TAIL)
    return frame.origins((0.0, begin)), frame.origins((begin, 1.0))[-HELD:]


def _drawn(run: int, device: str, purpose: str, of_round: int) -> np.random.Generator:
    return keyed(run, device, f"tuning {purpose}", of_round)


def _loss(learner: ModelRuntime, frame: ChannelFrame, held: Ints, p: Vector) -> float:
    found = fan(learner.bundle.graphs["forecast"], p, frame, held, learner.levels)
    loss = mean_loss(found, frame.truth(held), learner.levels)
    return loss if np.isfinite(loss) else float("inf")
