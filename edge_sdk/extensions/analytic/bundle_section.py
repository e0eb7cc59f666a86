"""Define the section of the manifest of a bundle in closed form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Final

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.app.schema import Between, Length, build
from edge_sdk.protocol.contract.manifest import HIDDEN, Manifest
from edge_sdk.protocol.contract.parameter_layout import ParamSpec

BOUNDED_STATISTIC: Final = "bounded_statistic"
"""The statistic in which no window has more than a bounded share; a device adds noise to it."""

FUNCTIONS: Final = (
    "forecast",
    "gradient",
    "design",
    "statistic",
    BOUNDED_STATISTIC,
    "personal",
)
"""Functions of a bundle in closed form, by the names under which others have graphs."""


@dataclass(frozen=True, slots=True)
class AnalyticSection:
    """A linear model over named features and frozen random units, solved in closed form.

    ``edge_sdk.extensions.analytic`` computes it with numpy; features ``hidden:k`` alone need a graph. The
    bundle's vector holds the layers ``mean`` and ``deviation`` of every feature, and
    ``coefficients`` of every output. An output is one level of one horizon step; levels of a step are neighbours.
    """

    # feature names, as ``edge_sdk.extensions.analytic.features`` defines them
    features: Annotated[tuple[Annotated[str, Length(1, 64)], ...], Length(1, 512)]
    units: Annotated[int, Between(0, 4096)]
    # seed of the random units; the bundle's name is the name of the draw
    seed: Annotated[int, Between(0, 2**53)]
    clip: Annotated[float, Between(1e-6, 1e6)]  # bound of a scaled target's modulus
    # largest number of windows that a statistic counts; a longer record is scaled down
    windows: Annotated[int, Between(1, 10_000_000)]
    # the golden window's design row for the first step, under the initial vector
    design: tuple[Annotated[float, Between(-1e6, 1e6)], ...]
    # residual below which a window's weight no longer rises, in units of the scale
    floor: Annotated[float, Between(1e-9, 1e9)] = 0.02
    # ridge penalty of the fleet's solution, per window
    penalty: Annotated[float, Between(1e-12, 1e6)] = 1e-3
    # true if the initial vector holds the fleet's means and deviations; otherwise the first round
    # computes them
    standardised: bool = False

    @property
    def width(self) -> int:
        return len(self.features) + self.units + 1

    @property
    def functions(self) -> tuple[str, ...]:
        return FUNCTIONS

    @property
    def has_hidden(self) -> bool:
        """Return whether a frozen network's last hidden layer is among the features."""
        return any(name.startswith("hidden:") for name in self.features)

    def layers(self, outputs: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Return the layers of the bundle's vector."""
        count = len(self.features)
        return (
            ("mean", (count,)),
            ("deviation", (count,)),
            ("coefficients", (outputs, self.width)),
        )

    def statistic_size(self, outputs: int) -> int:
        """Return the number of scalars of a statistic (``statistic_layout``)."""
        return statistic_layout(outputs, self.width).size

    def refuse_misfit(self, manifest: Manifest) -> None:
        """Refuse a manifest whose other parts do not fit a model in closed form."""
        if (
            set(manifest.graphs) - {HIDDEN}
            or manifest.paths is not None
            or manifest.activation is not None
        ):
            raise ValueError(
                f"a model in closed form has no graph but {HIDDEN!r}, no path and no second half"
            )
        if manifest.window.least_known is not None:
            raise ValueError("window.least_known is for models that take gaps")
        manifest.check_signatures()
        if (HIDDEN in manifest.graphs) != self.has_hidden:
            raise ValueError(f"graph {HIDDEN!r} is required for features hidden:…, and only there")
        if manifest.target.form != "change" or manifest.loss.name == "huber":
            raise ValueError(
                "a model in closed form learns a change, under mse, absolute or pinball"
            )
        if manifest.layers != (wanted := self.layers(math.prod(manifest.forecast_shape))):
            raise ValueError(f"layers must be those of the analytic section: {wanted}")
        if len(self.design) != self.width:
            raise ValueError(f"analytic.design must have {self.width} values")


def read_section(given: object, *, where: str) -> Any:  # noqa: ANN401 - one of two sections
    """Return the section of a manifest: that of profiles, if it names a ``map`` of features.

    Raises:
        SchemaError: A field that does not fit.
    """
    if isinstance(given, Mapping) and "map" in given:
        from edge_sdk.extensions.analytic.profile_section import (  # noqa: PLC0415 - for few bundles
            ProfileSection,
        )

        return build(ProfileSection, given, where=where)
    return build(AnalyticSection, given, where=where)


def statistic_layout(outputs: int, width: int) -> ParamSpec:
    """Return the layout of a statistic as one vector.

    Args:
        outputs: Number of outputs; each has a matrix of its own.
        width: Length P of a design row.

    >>> spec = statistic_layout(3, 114)
    >>> [layer.name for layer in spec.layers], spec.size
    (['gram', 'cross', 'squares', 'residuals', 'count'], 20014)
    """
    return ParamSpec.of(
        (
            ("gram", (outputs, width * (width + 1) // 2)),
            ("cross", (outputs, width)),
            ("squares", (outputs,)),
            ("residuals", (outputs,)),
            ("count", (1,)),
        )
    )
