"""Define the manifest itself: what its sections must agree on, and its canonical bytes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Final, Literal

from edge_sdk.wire.contract.analytic import FUNCTIONS, AnalyticSection
from edge_sdk.wire.contract.manifest.graphs import (
    FORECAST,
    GRADIENT,
    HIDDEN,
    SIGNATURES,
    SPLIT,
)
from edge_sdk.wire.contract.manifest.sections import (
    Count,
    Feature,
    Golden,
    GraphFile,
    Hash,
    LipschitzStage,
    Loss,
    Name,
    Target,
    Training,
    Window,
)
from edge_sdk.wire.contract.parameter_layout import LayoutError, ParamSpec
from edge_sdk.wire.errors import WireError
from edge_sdk.wire.schema import Between, Length, Matches, SchemaError, build, key_of

FORMAT: Final = 1


class ManifestError(WireError):
    """An error: a manifest that cannot be read, or that contradicts itself."""


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
        analytic: A model in closed form, which has no graph but ``hidden``; None for any other.
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
            raise ValueError(
                "output quantiles requires the loss pinball, and pinball requires quantiles"
            )
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
        if feature.name not in self.optional:
            raise ValueError(f"feature {feature.name!r}: a feature with lead_steps needs a mask")

    @property
    def optional(self) -> frozenset[str]:
        """Return the names of the channels that a device may lack: those that a mask names."""
        return frozenset(feature.of for feature in self.features if feature.of is not None)

    @property
    def streams(self) -> tuple[str, ...]:
        """Return the streams that a device keeps: the target, those read, those announced ahead."""
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

    def _check_analytic(self, section: AnalyticSection) -> None:
        if set(self.graphs) - {HIDDEN} or self.paths is not None or self.activation is not None:
            raise ValueError(
                f"a model in closed form has no graph but {HIDDEN!r}, no path and no second half"
            )
        self._check_signatures()
        if (HIDDEN in self.graphs) != section.has_hidden:
            raise ValueError(f"graph {HIDDEN!r} is required for features hidden:…, and only there")
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
            raise ValueError(
                "the loss absolute is for models in closed form only (section analytic)"
            )
        for role in (GRADIENT, FORECAST):
            if role not in self.graphs:
                raise ValueError(f"graph {role!r} is missing")
        self._check_signatures()
        if any(name in self.graphs for name in SPLIT) != (self.activation is not None):
            raise ValueError("activation is required for a split model, and only there")

    def _check_signatures(self) -> None:
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
    raise ValueError(f"{text} is not a number that JSON allows")
