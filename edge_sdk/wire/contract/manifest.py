"""Define a bundle's manifest: layout, window, features, training, graphs and golden sample.

The exporter writes it, the device and the aggregator read it; neither needs torch, onnx or an
inference engine. It is stored as canonical JSON, so a manifest has one digest and one signature.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Final, Literal

from edge_sdk.wire.contract.analytic import FUNCTIONS, AnalyticSection
from edge_sdk.wire.contract.parameter_layout import LayoutError, ParamSpec
from edge_sdk.wire.errors import WireError
from edge_sdk.wire.schema import Between, Length, Matches, SchemaError, build, key_of

FORMAT: Final = 1
GRADIENT = "gradient"
FORECAST = "forecast"
ROBUST_GRADIENT = "robust_gradient"
CLIPPED_GRADIENT = "clipped_gradient"
HVP = "hvp"
ENCODE = "encode"
ENCODE_VJP = "encode_vjp"
DECODE = "decode"
AIDED_FORECAST = "aided_forecast"
SPLIT = (ENCODE, ENCODE_VJP, DECODE, AIDED_FORECAST)
"""The graphs of a model in two halves; the aggregator may compute between them."""

SIGNATURES: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = MappingProxyType(
    {
        GRADIENT: (("p", "x", "y"), ("loss", "g")),
        FORECAST: (("p", "x"), ("yhat",)),
        ROBUST_GRADIENT: (("p", "x", "y", "rho"), ("loss", "g", "slope")),
        CLIPPED_GRADIENT: (("p", "x", "y", "bound"), ("loss", "g")),
        HVP: (("p", "x", "y", "v"), ("hv",)),
        ENCODE: (("p", "x"), ("h",)),
        ENCODE_VJP: (("p", "x", "gh"), ("g",)),
        DECODE: (("p", "h", "z", "y"), ("loss", "g", "gh", "gz")),
        AIDED_FORECAST: (("p", "x", "z"), ("yhat",)),
    }
)
"""Feeds and results of every graph that a bundle may have, float32, in order.

``p`` is the vector ``[P]``, ``x`` inputs ``[B, lookback, channels]``, ``y`` targets
``[B, horizon]``; ``rho`` and ``bound`` are scalars. ``loss`` is the batch's mean and ``yhat`` the
forecast, ``[B, horizon]``, or ``[B, horizon, levels]`` where the target's output is ``quantiles``.
``g [P]`` is the loss's gradient; in ``robust_gradient`` that of
``loss + rho * slope``, where ``slope`` is the mean norm of an example's slope in ``(x, y)``; in
``clipped_gradient`` the **sum** over examples of their own gradients, each at most ``bound`` long.
``hv [P]`` is the product of the loss's second derivatives with ``v [P]``.

Of a model in two halves, ``h`` and ``z`` are what goes to the aggregator and what comes back,
``[B, F, L]``, and ``gh``, ``gz`` the loss's gradients in them; ``forecast`` and ``gradient`` hold z
at zero. ``decode`` gives the decoder's part of ``g`` and the ``gh`` of the decoder alone,
``encode_vjp`` the encoder's part for any ``gh``; each ``g`` is ``[P]``, zero in the other half.
"""

Name = Annotated[str, Matches(r"[a-z0-9][a-z0-9-]{0,63}")]
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


class ManifestError(WireError):
    """An error: a manifest that cannot be read, or that contradicts itself."""


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
            its windows are complete all the same.
        unit: Unit of the value before scaling.
        low: Public lower end of the scale; not used for ``target`` and ``lag``.
        high: Public upper end of the scale.
        stream: Canonical stream name, for ``stream``.
        what: Name of the calendar feature, for ``calendar``.
        lag_steps: Lag in steps, for ``lag``.
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

    def __post_init__(self) -> None:
        """Refuse an empty scale, and a kind without the fields it needs."""
        if not self.high > self.low:
            raise ValueError(f"feature {self.name!r}: high must exceed low")
        needs = _NEEDED.get(self.kind)
        if needs is not None and getattr(self, needs) is None:
            raise ValueError(f"feature {self.name!r}: a {self.kind} feature needs {needs!r}")


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


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything a device needs to run and train a bundle's model.

    Attributes:
        format: Schema number; always 1.
        name: Name of the bundle.
        version: Version of the bundle; rises with every release, a device never installs a lower
            one.
        min_sdk: Oldest SDK version that may load it, ``major.minor.patch``.
        layers: ``(name, dimensions)`` in model order.
        shared: Name prefixes of the layers that a run shares by default; empty for none.
        window: Input and forecast length.
        features: Input channels in order.
        target: Series that is forecast.
        loss: Training loss.
        training: Local optimiser and its limits.
        graphs: Graphs by name, as ``SIGNATURES`` lists them; ``gradient`` and ``forecast`` always.
        golden: Golden sample, run before a bundle is accepted.
        files: SHA-256 in hexadecimal of every other file of the bundle except the signature.
        paths: Factors from the window to the forecast, one list per path; the paths' products are
            added.
        activation: F and L of a model in two halves; None for any other.
        analytic: A model in closed form, which has no graph; None for any other.
    """

    name: Name
    version: Annotated[int, Between(1, 2**31 - 1)]
    min_sdk: Annotated[str, Matches(r"\d{1,4}\.\d{1,4}\.\d{1,4}")]
    layers: tuple[tuple[Annotated[str, Length(1, 128)], tuple[Count, ...]], ...]
    shared: tuple[str, ...]
    window: Window
    features: Annotated[tuple[Feature, ...], Length(1, 256)]
    target: Target
    loss: Loss
    training: Training
    graphs: Mapping[str, GraphFile]
    golden: Golden
    files: Mapping[str, Hash] = field(default_factory=lambda: MappingProxyType({}))
    format: Literal[1] = FORMAT
    paths: Annotated[tuple[tuple[LipschitzStage, ...], ...], Length(1, 64)] | None = None
    activation: tuple[Count, Count] | None = None
    analytic: AnalyticSection | None = None

    def __post_init__(self) -> None:
        """Refuse fields that contradict one another."""
        if (self.target.output == "quantiles") != (self.loss.levels is not None):
            raise ValueError("an output of quantiles goes with a pinball loss, and with no other")
        self._check_features()
        self._check_golden()
        if self.analytic is None:
            self._check_graphs()
        else:
            self._check_analytic(self.analytic)

    def _check_features(self) -> None:
        names = [feature.name for feature in self.features]
        if len(set(names)) != len(names):
            raise ValueError(f"feature names must differ: {', '.join(names)}")
        if sum(feature.kind == "target" for feature in self.features) != 1:
            raise ValueError("exactly one feature must be the target's own series")
        masked = [feature.of for feature in self.features if feature.of is not None]
        can_lack = {f.name for f in self.features if f.kind in ("stream", "lag", "static")}
        if wrong := [name for name in masked if name not in can_lack]:
            raise ValueError(
                f"a mask names {wrong[0]!r}, which is no stream, lag or static feature"
            )
        if len(set(masked)) != len(masked):
            raise ValueError(f"a feature has one mask: {', '.join(masked)}")

    @property
    def optional(self) -> frozenset[str]:
        """Return the names of the channels that a device may lack: those that a mask names."""
        return frozenset(feature.of for feature in self.features if feature.of is not None)

    @property
    def required_streams(self) -> tuple[str, ...]:
        """Return the streams without which there is no complete window, the target's first."""
        needed = (f.stream for f in self.features if f.stream and f.name not in self.optional)
        return tuple(dict.fromkeys((self.target.stream, *needed)))

    def _check_golden(self) -> None:
        rows, width = len(self.golden.x), len(self.features)
        if rows != self.window.lookback or any(len(row) != width for row in self.golden.x):
            raise ValueError(f"golden.x must be {self.window.lookback} rows of {width} values")
        if len(self.golden.yhat) != (wanted := math.prod(self.forecast_shape)):
            raise ValueError(f"golden.yhat must have {wanted} values")

    def _check_analytic(self, section: AnalyticSection) -> None:
        if self.graphs or self.paths is not None or self.activation is not None:
            raise ValueError("a model in closed form has no graph, no path and no second half")
        if self.target.form != "change" or self.loss.name == "huber":
            raise ValueError(
                "a model in closed form learns a change, under mse, absolute or pinball"
            )
        if self.layers != (wanted := section.layers(math.prod(self.forecast_shape))):
            raise ValueError(f"layers must be those of the analytic section: {wanted}")
        if len(section.design) != section.width:
            raise ValueError(f"analytic.design must have {section.width} values")

    @property
    def functions(self) -> frozenset[str]:
        """Return the names of everything that the bundle can compute."""
        return frozenset(self.graphs if self.analytic is None else FUNCTIONS)

    def _check_graphs(self) -> None:
        if self.loss.name == "absolute":
            raise ValueError("an absolute loss belongs to an analytic section, and to nothing else")
        for role in (GRADIENT, FORECAST):
            if role not in self.graphs:
                raise ValueError(f"graph {role!r} is missing")
        for name, graph in self.graphs.items():
            if SIGNATURES.get(name, (graph.inputs, graph.outputs)) != (graph.inputs, graph.outputs):
                raise ValueError(f"graph {name!r} must take and give {SIGNATURES[name]}")
        if any(name in self.graphs for name in SPLIT) != (self.activation is not None):
            raise ValueError("activation is required for a split model, and only there")

    @classmethod
    def parse(cls, data: bytes) -> Manifest:
        """Read ``manifest.json``, strictly.

        Raises:
            ManifestError: Not JSON, an unknown, missing or ill-fitting field (the message names
                it), or not in canonical form.
        """
        try:
            manifest = build(cls, json.loads(data, parse_constant=_no_constant), where="manifest")
        except SchemaError as misfit:
            raise ManifestError(str(misfit)) from misfit
        except (ValueError, RecursionError) as error:
            raise ManifestError(f"manifest: not readable as JSON: {error}") from error
        if manifest.canonical() != data:
            raise ManifestError("manifest: not in canonical form; was it edited after its export?")
        return manifest

    def canonical(self) -> bytes:
        """Return the canonical JSON: sorted keys, UTF-8, no spaces, no nulls."""
        return json.dumps(
            _plain(self), sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False
        ).encode()

    @property
    def digest(self) -> bytes:
        """Return SHA-256 of the canonical bytes (32 bytes), which a bundle's signature covers."""
        return hashlib.sha256(self.canonical()).digest()

    @property
    def forecast_shape(self) -> tuple[int, ...]:
        """Return the shape of one window's forecast: ``(horizon,)``, or ``(horizon, levels)``."""
        levels = self.loss.levels
        return (self.window.horizon,) if levels is None else (self.window.horizon, len(levels))

    @property
    def size(self) -> int:
        """Return the number of scalars in the whole vector (P)."""
        return sum(math.prod(dims) for _, dims in self.layers)

    def spec(self, shared: Sequence[str] | None = None) -> ParamSpec:
        """Lay out the model's vector.

        Args:
            shared: The run's prefixes; None takes the bundle's own.

        Raises:
            ManifestError: Repeated layers, or a prefix that matches none.
        """
        try:
            return ParamSpec.of(self.layers, self.shared if shared is None else shared)
        except LayoutError as error:
            raise ManifestError(f"manifest: {error}") from error


def _plain(value: object) -> object:
    """Convert dataclasses and tuples to JSON types; fields that are None are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((key_of(f.name), getattr(value, f.name)) for f in dataclasses.fields(value))
        return {key: _plain(item) for key, item in pairs if item is not None}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number here")
