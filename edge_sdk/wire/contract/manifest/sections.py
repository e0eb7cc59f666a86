"""Define the sections of a manifest: window, features, target, loss, training, golden sample."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from edge_sdk.wire.schema import Between, Length, Matches

BUNDLE_NAME = r"[a-z0-9][a-z0-9-]{0,63}"
"""Regular expression of a bundle's name."""

Name = Annotated[str, Matches(BUNDLE_NAME)]
Hash = Annotated[str, Matches(r"[0-9a-f]{64}")]
Count = Annotated[int, Between(1, 65536)]
Finite = Annotated[float, Between(-1e30, 1e30)]
Level = Annotated[float, Between(1e-6, 1 - 1e-6)]

MAX_RATE: Final = 1.0
"""Largest learning rate of a task where the bundle sets none (``training.max_rate``)."""

MAX_PROX: Final = 100.0
"""Largest proximal weight of a task where the bundle sets none (``training.max_prox``)."""

MAX_STEPS: Final = 65_536
"""Most local steps of a task where the bundle sets none (``training.max_steps``)."""


@dataclass(frozen=True, slots=True)
class Window:
    """Input length and forecast length of one sample.

    Attributes:
        lookback: Rows of input, oldest first.
        horizon: Target values after the last row.
        step_seconds: Seconds from one row to the next.
    """

    lookback: Count
    horizon: Count
    step_seconds: Annotated[int, Between(1, 604_800)]


_NEEDED: Final = {"stream": "stream", "calendar": "what", "lag": "lag_steps", "mask": "of"}
"""Field that a kind of feature needs."""

OPTIONAL_SDK: Final = "0.1.1"
"""Oldest SDK that knows optional channels: ``min_sdk`` of a manifest that has some."""

LEAD_SDK: Final = "0.1.2"
"""Oldest SDK that knows channels with a lead: ``min_sdk`` of a manifest that has some."""


def oldest_sdk(features: Sequence[Feature], otherwise: str) -> str:
    """Return the oldest SDK that knows every channel; ``otherwise`` where none is special.

    >>> warm = Feature("next", "stream", "°C", stream="weather.temperature", lead_steps=1)
    >>> oldest_sdk([warm], "0.1.0"), oldest_sdk([], "0.1.0")
    ('0.1.2', '0.1.0')
    """
    if any(feature.lead_steps is not None for feature in features):
        return LEAD_SDK
    return OPTIONAL_SDK if any(feature.of is not None for feature in features) else otherwise


@dataclass(frozen=True, slots=True)
class Feature:
    """One input channel, scaled to ``(value - low) / (high - low)``.

    Attributes:
        name: Display name.
        kind: ``target`` (the series itself, on the device's own scale), ``stream`` (another
            measured or forecast series), ``calendar`` (calendar feature ``what`` of the row's own
            time), ``lag`` (the target ``lag_steps - 1`` steps before the row, so that the last row
            lines up with the first target), ``static`` (a constant of the site), ``mask`` (1 where
            the channel ``of`` has a value in that row, 0 where it has none). A ``stream``, ``lag``
            or ``static`` that a mask names is optional: without a value it is 0 after scaling, and
            its windows are complete all the same. A ``stream`` with ``lead_steps`` has in each row
            the value of a later row; where that is unknown, the newest recorded one, and 0 only
            without any.
        unit: Unit of the value before scaling.
        low: Public lower end of the scale; not used for ``target`` and ``lag``.
        high: Public upper end of the scale.
        stream: Canonical stream name, for ``stream``.
        what: Name of the calendar feature, for ``calendar``.
        lag_steps: Lag in steps, for ``lag``.
        lead_steps: Steps from a row to the row whose value it has, for an optional ``stream`` such
            as the announced weather of the target's hour; at most the horizon.
        of: Name of the optional channel, for ``mask``.
    """

    name: Annotated[str, Length(1, 64)]
    kind: Literal["target", "stream", "calendar", "lag", "static", "mask"]
    unit: Annotated[str, Length(1, 32)]
    low: Finite = 0.0
    high: Finite = 1.0
    stream: str | None = None
    what: str | None = None
    lag_steps: Count | None = None
    of: Annotated[str, Length(1, 64)] | None = None
    lead_steps: Count | None = None

    def __post_init__(self) -> None:
        """Refuse an empty scale, a kind without the fields it needs, and a lead of another kind."""
        if not self.high > self.low:
            raise ValueError(f"feature {self.name!r}: high must exceed low")
        needs = _NEEDED.get(self.kind)
        if needs is not None and getattr(self, needs) is None:
            raise ValueError(f"feature {self.name!r}: a {self.kind} feature needs {needs!r}")
        if self.lead_steps is not None and self.kind != "stream":
            raise ValueError(f"feature {self.name!r}: only a stream has 'lead_steps'")

    @property
    def lead_stream(self) -> str | None:
        """Return the name under which a device keeps the announced values; None without a lead.

        In the row of a slot it has the value that was announced for ``lead_steps`` slots later.

        >>> Feature("next", "stream", "°C", stream="weather.temperature", lead_steps=1).lead_stream
        'weather.temperature+1'
        """
        return None if self.lead_steps is None else f"{self.stream}+{self.lead_steps}"


@dataclass(frozen=True, slots=True)
class Target:
    """The series that is forecast.

    Attributes:
        stream: Canonical stream of the series.
        unit: Unit of its values.
        form: ``level`` (the scaled value) or ``change`` (its difference from the last row,
            divided by the scale's width; the forecast adds the last value back).
        scale: ``device`` (the minimum and maximum of the device's own training part) or
            ``fixed`` (``low`` and ``high``).
        output: ``point``: one value per horizon step; ``quantiles``: one value for each of the
            loss's levels, in their order.
        low: Lower end of a fixed scale.
        high: Upper end of a fixed scale.
    """

    stream: Annotated[str, Length(1, 64)]
    unit: Annotated[str, Length(1, 32)]
    form: Literal["level", "change"]
    scale: Literal["device", "fixed"]
    output: Literal["point", "quantiles"] = "point"
    low: Finite | None = None
    high: Finite | None = None

    def __post_init__(self) -> None:
        """Refuse a fixed scale whose two ends are missing or not in order."""
        if self.scale == "fixed" and not (
            self.low is not None and self.high is not None and self.high > self.low
        ):
            raise ValueError("a fixed scale needs low < high")


@dataclass(frozen=True, slots=True)
class Loss:
    """The training loss, on scaled values.

    ``mse``, ``huber`` and ``absolute`` are averaged over batch and horizon; ``pinball`` is summed
    over levels and horizon and averaged over the batch. ``absolute`` is for models in closed form.

    Attributes:
        name: Name of the loss.
        delta: Threshold at which Huber's loss turns from quadratic to linear.
        levels: Quantile levels that ``pinball`` learns, rising, the median among them and at least
            one on either side of it; the outer two are the ends of the interval.
    """

    name: Literal["mse", "huber", "pinball", "absolute"]
    delta: Annotated[float, Between(1e-9, 1e9)] | None = None
    levels: Annotated[tuple[Level, ...], Length(3, 99)] | None = None

    def __post_init__(self) -> None:
        """Refuse a delta without Huber, levels without pinball, and either loss without its own."""
        if (self.name == "huber") != (self.delta is not None):
            raise ValueError("delta is required for the loss huber, and only there")
        if (self.name == "pinball") != (self.levels is not None):
            raise ValueError("levels are required for the loss pinball, and only there")
        if self.levels is not None:
            _check_levels(self.levels)


def _check_levels(levels: Sequence[float]) -> None:
    if any(after <= before for before, after in itertools.pairwise(levels)):
        raise ValueError(f"levels must rise: {', '.join(map(str, levels))}")
    if 0.5 not in levels[1:-1]:
        raise ValueError("levels must have the median 0.5, and others on either side of it")


@dataclass(frozen=True, slots=True)
class Training:
    """Local optimiser and its defaults; a task's numbers override steps and rate.

    Attributes:
        optimiser: Optimiser of the local steps.
        rate: Learning rate where a task gives none.
        beta1: Adam's decay of the first moment.
        beta2: Adam's decay of the second moment.
        eps: Adam's epsilon.
        batch: Number of windows in a minibatch.
        steps: Number of local steps where a task gives none.
        minibatch: Whether all steps of a round use one minibatch, or each step draws a fresh one.
        max_rate: Largest learning rate that a task may set; ``MAX_RATE`` where left out.
        max_steps: Largest number of local steps that a task may set; ``MAX_STEPS`` where left out.
            A device also takes no more than its own ``accept.max_steps``.
        max_prox: Largest proximal weight that a task may set; ``MAX_PROX`` where left out.
    """

    optimiser: Literal["adam", "sgd"] = "adam"
    rate: Annotated[float, Between(1e-9, 1e3)] = 1e-3
    beta1: Annotated[float, Between(0.0, 0.999999)] = 0.9
    beta2: Annotated[float, Between(0.0, 0.999999)] = 0.999
    eps: Annotated[float, Between(1e-12, 1.0)] = 1e-8
    batch: Count = 64
    steps: Count = 4
    minibatch: Literal["fixed", "fresh"] = "fresh"
    max_rate: Annotated[float, Between(1e-9, 10.0)] | None = None
    max_steps: Count | None = None
    max_prox: Annotated[float, Between(0.0, 1e4)] | None = None

    def __post_init__(self) -> None:
        """Refuse defaults beyond the limits."""
        for name in ("rate", "steps"):
            value, most = getattr(self, name), self.limits[name]
            if value > most:
                raise ValueError(f"training.{name}: {value:g} above training.max_{name} {most:g}")

    @property
    def limits(self) -> Mapping[str, float]:
        """Return the largest ``rate``, ``steps`` and ``prox`` that a task may set.

        >>> dict(Training(max_rate=0.1).limits)
        {'rate': 0.1, 'steps': 65536, 'prox': 100.0}
        """
        return {
            "rate": MAX_RATE if self.max_rate is None else self.max_rate,
            "steps": MAX_STEPS if self.max_steps is None else self.max_steps,
            "prox": MAX_PROX if self.max_prox is None else self.max_prox,
        }


@dataclass(frozen=True, slots=True)
class GraphFile:
    """One exported function: its file, and its feeds and results in order."""

    file: Annotated[str, Matches(r"[a-z_]{1,32}\.onnx")]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LipschitzStage:
    """One factor of the Lipschitz bound of the forecast with respect to its window.

    Attributes:
        kind: ``read`` (a slice of the window; ``times`` is the square root of the largest number of
            times that a value is read), ``linear``, ``prelu``, or ``gru`` and ``lstm`` with all
            layers of one module, forwards, from a zero state.
        layer: Name of the module; its parameters are ``layer.weight`` and so on.
        times: Factor of ``read``.
        steps: Number of steps of a recurrent module.
        whole: Whether all of its steps are passed on, or only the last one.
    """

    kind: Literal["read", "linear", "prelu", "gru", "lstm"]
    layer: Annotated[str, Length(0, 128)] = ""
    times: Annotated[float, Between(0.0, 1e6)] = 1.0
    steps: Count = 1
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Golden:
    """One input window and the forecast of the initial vector on it, in scaled units.

    Attributes:
        x: ``lookback`` rows of one value per feature.
        yhat: ``horizon`` values from the authoring framework; for quantiles, the values of the
            first step's levels come first.
        tolerance: Largest absolute difference allowed on a device.
    """

    x: tuple[tuple[Finite, ...], ...]
    yhat: tuple[Finite, ...]
    tolerance: Annotated[float, Between(1e-9, 1e-2)] = 1e-5
