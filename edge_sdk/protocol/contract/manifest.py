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
from dataclasses import field
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

from edge_sdk.app.extensions import ExtensionIndex
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.app.schema import Between, Length, Matches, SchemaError, build, key_of
from edge_sdk.errors import WireError
from edge_sdk.protocol.contract.parameter_layout import LayoutError, ParamSpec

GRADIENT = "gradient"
FORECAST = "forecast"
ROBUST_GRADIENT = "robust_gradient"
CLIPPED_GRADIENT = "clipped_gradient"
HVP = "hvp"
ENCODE = "encode"
ENCODE_VJP = "encode_vjp"
DECODE = "decode"
AIDED_FORECAST = "aided_forecast"
HIDDEN = "hidden"
"""Of a model in closed form: a frozen network's last hidden layer, which is features."""
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
        HIDDEN: (("x",), ("hidden",)),
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

``hidden`` is the last hidden layer of a trained network whose vector the graph contains, ``[B, F]``.
"""


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
    """Input length and forecast length of one sample."""

    lookback: Count  # rows of input, oldest first
    horizon: Count  # target values after the last row
    step_seconds: Annotated[int, Between(1, 604_800)]  # seconds from one row to the next
    # known rows of the lookback from which a forecast is made; all of them where left out
    least_known: Count | None = None

    @property
    def least(self) -> int:
        """Known rows of the lookback from which a forecast is made."""
        return self.lookback if self.least_known is None else self.least_known


_NEEDED: Final = {"stream": "stream", "calendar": "what", "lag": "lag_steps", "mask": "of"}
"""Field that a kind of feature needs."""


@dataclass(frozen=True, slots=True)
class Feature:
    """One input channel, scaled to ``(value - low) / (high - low)``."""

    name: Annotated[str, Length(1, 64)]
    # ``target`` (the series itself, on the device's own scale), ``stream`` (another measured or
    # forecast series), ``calendar`` (calendar feature ``what`` of the row's own time), ``lag`` (the
    # target ``lag_steps - 1`` steps before the row, so that the last row lines up with the first
    # target), ``static`` (a constant of the site), ``mask`` (1 where the channel ``of`` has a value
    # in that row, 0 where it has none). A ``stream``, ``lag`` or ``static`` that a mask names is
    # optional: without a value it is 0 after scaling, and its windows are complete all the same. A
    # ``stream`` with ``lead_steps`` has in each row the value of a later row; where that is
    # unknown, the newest recorded one, and 0 only without any. A ``calendar`` has that of the later
    # row's time.
    kind: Literal["target", "stream", "calendar", "lag", "static", "mask"]
    unit: Annotated[str, Length(1, 32)]  # unit of the value before scaling
    low: Finite = 0.0  # public lower end of the scale; not used for ``target`` and ``lag``
    high: Finite = 1.0  # public upper end of the scale
    stream: str | None = None  # canonical stream name, for ``stream``
    what: str | None = None  # name of the calendar feature, for ``calendar``
    lag_steps: Count | None = None  # lag in steps, for ``lag``
    of: Annotated[str, Length(1, 64)] | None = None  # name of the optional channel, for ``mask``
    # steps from a row to the row whose value it has, for an optional ``stream`` such as the
    # announced weather of the target's hour; at most the horizon
    lead_steps: Count | None = None

    def __post_init__(self) -> None:
        """Refuse an empty scale, a kind without the fields it needs, and a lead of another kind."""
        if not self.high > self.low:
            raise ValueError(f"feature {self.name!r}: high must exceed low")
        needs = _NEEDED.get(self.kind)
        if needs is not None and getattr(self, needs) is None:
            raise ValueError(f"feature {self.name!r}: a {self.kind} feature needs {needs!r}")
        if self.lead_steps is not None and self.kind not in ("stream", "calendar"):
            raise ValueError(
                f"feature {self.name!r}: only a stream or a calendar feature has 'lead_steps'"
            )

    @property
    def lead_stream(self) -> str | None:
        """Return the name under which a device keeps the announced values; None without a lead.

        In the row of a slot it has the value that was announced for ``lead_steps`` slots later.

        >>> Feature("next", "stream", "°C", stream="weather.temperature", lead_steps=1).lead_stream
        'weather.temperature+1'
        """
        is_ahead = self.lead_steps is not None and self.stream is not None
        return f"{self.stream}+{self.lead_steps}" if is_ahead else None


@dataclass(frozen=True, slots=True)
class Target:
    """The series that is forecast."""

    stream: Annotated[str, Length(1, 64)]  # canonical stream of the series
    unit: Annotated[str, Length(1, 32)]
    # ``level`` (the scaled value) or ``change`` (its difference from the last row, divided by the
    # scale's width; the forecast adds the last value back)
    form: Literal["level", "change"]
    # ``device`` (the minimum and maximum of the device's own training part) or ``fixed`` (``low``
    # and ``high``)
    scale: Literal["device", "fixed"]
    # ``point``: one value per horizon step; ``quantiles``: one value for each of the loss's levels,
    # in their order
    output: Literal["point", "quantiles"] = "point"
    low: Finite | None = None  # lower end of a fixed scale
    high: Finite | None = None  # upper end of a fixed scale

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
    """

    name: Literal["mse", "huber", "pinball", "absolute"]
    # threshold at which Huber's loss turns from quadratic to linear
    delta: Annotated[float, Between(1e-9, 1e9)] | None = None
    # quantile levels that ``pinball`` learns, rising, the median among them and at least one on
    # either side of it; the outer two are the ends of the interval
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
    """Local optimiser and its defaults; a task's numbers override steps and rate."""

    optimiser: Literal["adam", "sgd"] = "adam"  # optimiser of the local steps
    rate: Annotated[float, Between(1e-9, 1e3)] = 1e-3  # learning rate where a task gives none
    beta1: Annotated[float, Between(0.0, 0.999999)] = 0.9  # adam's decay of the first moment
    beta2: Annotated[float, Between(0.0, 0.999999)] = 0.999  # adam's decay of the second moment
    eps: Annotated[float, Between(1e-12, 1.0)] = 1e-8  # adam's epsilon
    batch: Count = 64  # number of windows in a minibatch
    steps: Count = 4  # number of local steps where a task gives none
    # whether all steps of a round use one minibatch, or each step draws a fresh one
    minibatch: Literal["fixed", "fresh"] = "fresh"
    # largest learning rate that a task may set; ``MAX_RATE`` where left out
    max_rate: Annotated[float, Between(1e-9, 10.0)] | None = None
    # largest number of local steps that a task may set; ``MAX_STEPS`` where left out. A device also
    # takes no more than its own ``accept.max_steps``.
    max_steps: Count | None = None
    # largest proximal weight that a task may set; ``MAX_PROX`` where left out
    max_prox: Annotated[float, Between(0.0, 1e4)] | None = None

    def __post_init__(self) -> None:
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
    """One factor of the Lipschitz bound of the forecast with respect to its window."""

    # ``read`` (a slice of the window; ``times`` is the square root of the largest number of times
    # that a value is read), ``linear``, ``prelu``, or ``gru`` and ``lstm`` with all layers of one
    # module, forwards, from a zero state
    kind: Literal["read", "linear", "prelu", "gru", "lstm"]
    # name of the module; its parameters are ``layer.weight`` and so on
    layer: Annotated[str, Length(0, 128)] = ""
    times: Annotated[float, Between(0.0, 1e6)] = 1.0  # factor of ``read``
    steps: Count = 1  # number of steps of a recurrent module
    whole: bool = False  # whether all of its steps are passed on, or only the last one


@dataclass(frozen=True, slots=True)
class Golden:
    """One input window and the forecast of the initial vector on it, in scaled units."""

    x: tuple[tuple[Finite, ...], ...]  # ``lookback`` rows of one value per feature
    # ``horizon`` values from the authoring framework; for quantiles, the values of the first step's
    # levels come first
    yhat: tuple[Finite, ...]
    # largest absolute difference allowed on a device
    tolerance: Annotated[float, Between(1e-9, 1e-2)] = 1e-5


FORMAT: Final = 1


class ManifestError(WireError):
    """An error: a manifest that cannot be read, or that contradicts itself."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything a device needs to run and train a bundle's model."""

    name: Name
    # version of the bundle; rises with every release, a device never installs a lower one
    version: Annotated[int, Between(1, 2**31 - 1)]
    # oldest SDK version that may load it, ``major.minor.patch``
    min_sdk: Annotated[str, Matches(r"\d{1,4}\.\d{1,4}\.\d{1,4}")]
    # ``(name, dimensions)`` in model order
    layers: tuple[tuple[Annotated[str, Length(1, 128)], tuple[Count, ...]], ...]
    # name prefixes of the layers that a run shares by default; empty for none
    shared: tuple[str, ...]
    window: Window  # input and forecast length
    features: Annotated[tuple[Feature, ...], Length(1, 256)]  # input channels in order
    target: Target  # series that is forecast
    loss: Loss
    training: Training  # local optimiser and its limits
    # graphs by name, as ``SIGNATURES`` lists them; ``gradient`` and ``forecast`` always
    graphs: Mapping[str, GraphFile]
    golden: Golden  # golden sample, run before a bundle is accepted
    # SHA-256 in hexadecimal of every other file of the bundle except the signature
    files: Mapping[str, Hash] = field(default_factory=lambda: MappingProxyType({}))
    format: Literal[1] = FORMAT  # schema number; always 1
    # factors from the window to the forecast, one list per path; the paths' products are added
    paths: Annotated[tuple[tuple[LipschitzStage, ...], ...], Length(1, 64)] | None = None
    # F and L of a model in two halves; None for any other
    activation: tuple[Count, Count] | None = None
    # section of the extension that computes the bundle's functions, which has no graph but
    # ``hidden``; None for a network
    analytic: Any = None

    def __post_init__(self) -> None:
        if (self.target.output == "quantiles") != (self.loss.levels is not None):
            raise ValueError(
                "output quantiles requires the loss pinball, and pinball requires quantiles"
            )
        self._check_features()
        self._check_golden()
        if self.analytic is not None and not dataclasses.is_dataclass(self.analytic):
            object.__setattr__(self, "analytic", _read_section("analytic", self.analytic))
        if self.analytic is None:
            if self.window.least_known is not None:
                raise ValueError("window.least_known is for models that take gaps")
            self._check_graphs()
        else:
            self.analytic.refuse_misfit(self)

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
            raise ValueError(f"two masks name one feature: {', '.join(masked)}")
        for feature in self.features:
            self._check_lead(feature)

    def _check_lead(self, feature: Feature) -> None:
        """Refuse a lead beyond the horizon, of the target, and of a channel without a mask."""
        if feature.lead_steps is None:
            return
        if feature.lead_steps > self.window.horizon:
            most = self.window.horizon
            raise ValueError(f"feature {feature.name!r}: lead_steps above the horizon, {most}")
        if feature.stream == self.target.stream:
            raise ValueError(f"feature {feature.name!r}: the target is not known ahead")
        if feature.stream is not None and feature.name not in self.optional:
            raise ValueError(f"feature {feature.name!r}: a feature with lead_steps needs a mask")

    @property
    def optional(self) -> frozenset[str]:
        """Return the names of the channels that a device may lack: those that a mask names."""
        return frozenset(feature.of for feature in self.features if feature.of is not None)

    @property
    def streams(self) -> tuple[str, ...]:
        read = (name for f in self.features for name in (f.stream, f.lead_stream) if name)
        return tuple(dict.fromkeys((self.target.stream, *read)))

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

    @property
    def functions(self) -> frozenset[str]:
        """Return the names of the bundle's functions."""
        return frozenset(self.graphs if self.analytic is None else self.analytic.functions)

    def _check_graphs(self) -> None:
        if self.loss.name == "absolute":
            raise ValueError(
                "the loss absolute is for models in closed form only (section analytic)"
            )
        for role in (GRADIENT, FORECAST):
            if role not in self.graphs:
                raise ValueError(f"graph {role!r} is missing")
        self.check_signatures()
        if any(name in self.graphs for name in SPLIT) != (self.activation is not None):
            raise ValueError("activation is required for a split model, and only there")

    def check_signatures(self) -> None:
        """Refuse a graph with other feeds or results than ``SIGNATURES`` lists."""
        for name, graph in self.graphs.items():
            if SIGNATURES.get(name, (graph.inputs, graph.outputs)) != (graph.inputs, graph.outputs):
                raise ValueError(f"graph {name!r} must take and give {SIGNATURES[name]}")

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


def _read_section(name: str, given: object) -> Any:  # noqa: ANN401 - an extension's
    """Return a section of a manifest that an extension defines."""
    for entry in ExtensionIndex("edge_sdk").having("bundle"):
        if entry.row["bundle"] == name:
            return entry.load("manifest")(given, where=f"manifest.{name}")
    raise ValueError(f"{name}: no extension that computes such bundles is installed")


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((key_of(f.name), getattr(value, f.name)) for f in dataclasses.fields(value))
        return {key: _plain(item) for key, item in pairs if item is not None}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number that JSON allows")


STATISTIC: Final = "statistic"
"""Name of the function of every ask whose answer is a statistic."""
