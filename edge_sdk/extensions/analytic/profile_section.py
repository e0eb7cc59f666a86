"""Define the section of the manifest of a bundle that forecasts the profile of a day in closed form."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.app.schema import Between, Length
from edge_sdk.extensions.analytic.bundle_section import statistic_layout
from edge_sdk.extensions.analytic.profile_features import DAYS, HINGED, HOUR, KNOTS
from edge_sdk.extensions.analytic.profile_form import STAGES
from edge_sdk.extensions.analytic.profile_kinds import SIGNS
from edge_sdk.forecasting.calendar_features import DAY
from edge_sdk.protocol.contract.manifest import Manifest
from edge_sdk.protocol.contract.parameter_layout import ParamSpec

COLUMNS: Final = 262
"""Columns of ``profile_features.profile_rows``, P."""

WIDTH: Final = COLUMNS + len(HINGED) * len(KNOTS)
"""Length W of a design row, with hinges."""

SPREADS: Final = 6
"""Columns of ``profile_form.spread_columns``."""

FUNCTIONS: Final = (
    "forecast",
    "gradient",
    "design",
    "statistic",
    "day",
    "wait",
    "stage",
    "noise",
    "normalised",
    "share",
    "own_sums",
    "own_errors",
)
"""Functions of a bundle of profiles, by the names under which others have graphs."""

Stage = Annotated[int, Between(0, len(STAGES) - 1)]


@dataclass(frozen=True, slots=True)
class ProfileSection:
    """A linear model of the next day over the features of ``profile_features``, with a prior.

    The bundle's vector holds all that a device forecasts with: the prior, and the device's own part,
    which is zero in the bundle. A fleet learns ``coefficients`` and ``expected`` of some stages.
    """

    map: Literal["profile-1"]  # name of the features
    # the golden window's design row for the first step, under the initial vector
    design: tuple[Annotated[float, Between(-1e6, 1e6)], ...]
    # residual days of the bundle, K; a device replaces them by its own
    residual_days: Annotated[int, Between(1, 256)]
    # numbers of the stages that a fleet learns, rising; the others keep the bundle's coefficients
    stages: Annotated[tuple[Stage, ...], Length(1, len(STAGES))] = (len(STAGES) - 1,)
    # residual below which a row's weight no longer rises, in units of the naive forecast's error
    floor: Annotated[float, Between(1e-9, 1e9)] = 0.02
    # ridge penalty of the fleet's solution, as a share of the mean diagonal of its matrix
    penalty: Annotated[float, Between(1e-12, 1e6)] = 1e-3
    # mean logarithm, over the fleet, of the model's error over that of a device's mean profile
    expected_ratio: Annotated[float, Between(-10.0, 10.0)] = -0.2
    paths: Annotated[int, Between(1, 1024)] = 64  # equally likely paths of a forecast

    @property
    def width(self) -> int:
        return WIDTH

    @property
    def functions(self) -> tuple[str, ...]:
        return FUNCTIONS

    @property
    def has_hidden(self) -> bool:
        """Return False: no network's layer is among the features."""
        return False

    @property
    def standardised(self) -> bool:
        """Return True: the bundle holds the scales of the features."""
        return True

    def layers(self, horizon: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Return the layers of the bundle's vector.

        Args:
            horizon: Steps of the profile, H.
        """
        return (
            ("scale", (COLUMNS,)),  # of every column over the fleet
            ("coefficients", (len(STAGES), WIDTH)),  # of the median
            ("expected", (len(STAGES), WIDTH)),  # of the expected value
            ("spread", (len(STAGES), SPREADS)),  # of the announced spread
            ("strengths", (len(STAGES),)),  # of the own part, per row
            ("residuals", (self.residual_days, horizon)),
            ("homes", (len(STAGES), WIDTH)),  # what a home's median adds to ``coefficients``
            ("home", (len(STAGES), SIGNS)),  # weights of the probability of a home
            ("share", (1,)),  # of the model, in a blend with the device's mean profile
            ("own", (2, WIDTH)),  # own part, of the median and of the expected value
        )

    def statistic_layout(self) -> ParamSpec:
        """Return the layout of a statistic: an output for each of ``stages``, in their order."""
        return statistic_layout(len(self.stages), WIDTH)

    def statistic_size(self, _outputs: int = 1) -> int:
        """Return the number of scalars of a statistic."""
        return self.statistic_layout().size

    def refuse_misfit(self, manifest: Manifest) -> None:
        """Refuse a manifest whose other parts do not fit a model of profiles."""
        window, target = manifest.window, manifest.target
        if manifest.graphs or manifest.paths is not None or manifest.activation is not None:
            raise ValueError("a model of profiles has no graph, no path and no second half")
        if (target.form, target.scale, target.low) != ("level", "fixed", 0.0):
            raise ValueError("a model of profiles learns a level, on a fixed scale from 0")
        if manifest.loss.name != "pinball":
            raise ValueError("a model of profiles forecasts quantiles, under pinball")
        if HOUR % window.step_seconds or window.horizon * window.step_seconds < DAY:
            raise ValueError("a profile has a day or more, of rows that divide an hour")
        if window.lookback * window.step_seconds < DAYS * DAY + HOUR:
            raise ValueError(f"lookback must be {DAYS} days and an hour, or more")
        if window.least_known is None or window.least_known > window.lookback:
            raise ValueError("window.least_known must be set, and at most lookback")
        if list(self.stages) != sorted(set(self.stages)):
            raise ValueError("analytic.stages must rise")
        if manifest.layers != (wanted := self.layers(window.horizon)):
            raise ValueError(f"layers must be those of the analytic section: {wanted}")
        if len(self.design) != WIDTH:
            raise ValueError(f"analytic.design must have {WIDTH} values")
