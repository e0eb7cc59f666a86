"""Define what a bundle says about a model in closed form, and the layout of its statistic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from edge_sdk.wire.contract.parameter_layout import ParamSpec
from edge_sdk.wire.schema import Between, Length

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

STATISTIC: Final = "statistic"
"""The function that an ask must name whose answer is a statistic."""


@dataclass(frozen=True, slots=True)
class AnalyticSection:
    """A linear model over named features and frozen random units, solved in closed form.

    ``edge_sdk.analytic`` computes it with numpy; features ``hidden:k`` alone need a graph. The
    bundle's vector holds the layers ``mean`` and ``deviation`` of every feature, and
    ``coefficients`` of every output. An output is one level of one horizon step; levels of a step are neighbours.

    Attributes:
        features: Feature names, as ``edge_sdk.analytic.features`` defines them.
        units: Number of random units.
        seed: Seed of the random units; the bundle's name is the name of the draw.
        clip: Bound of a scaled target's modulus.
        windows: Largest number of windows that a statistic counts; a longer record is scaled down.
        design: The golden window's design row for the first step, under the initial vector.
        floor: Residual below which a window's weight no longer rises, in units of the scale.
        penalty: Ridge penalty of the fleet's solution, per window.
        standardised: True if the initial vector holds the fleet's means and deviations; otherwise
            the first round computes them.
    """

    features: Annotated[tuple[Annotated[str, Length(1, 64)], ...], Length(1, 512)]
    units: Annotated[int, Between(0, 4096)]
    seed: Annotated[int, Between(0, 2**53)]
    clip: Annotated[float, Between(1e-6, 1e6)]
    windows: Annotated[int, Between(1, 10_000_000)]
    design: tuple[Annotated[float, Between(-1e6, 1e6)], ...]
    floor: Annotated[float, Between(1e-9, 1e9)] = 0.02
    penalty: Annotated[float, Between(1e-12, 1e6)] = 1e-3
    standardised: bool = False

    @property
    def width(self) -> int:
        """Return P, the length of a design row: features, units and the constant."""
        return len(self.features) + self.units + 1

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


def statistic_layout(outputs: int, width: int) -> ParamSpec:
    """Return the layout of a statistic as one vector.

    Args:
        outputs: Number of outputs; each has a matrix of its own.
        width: Length P of a design row.

    Example:
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
