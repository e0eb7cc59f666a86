"""Begin the passes of runs whose statistics arrive as sums, and end them with the opened sums."""

from __future__ import annotations

import math
from typing import Any

from aggregator.config import AggregatorConfig
from aggregator.config.binding import bundle_of, settings_of
from aggregator.extensions.analytic.summed_fleet import PERIOD, period_of
from aggregator.methods.base.round_machine import Rounds
from aggregator.operations.server_extensions import ServerExtension
from aggregator.rounds.run_driver import RunDriver
from edge_sdk.app.settings import SettingsError
from edge_sdk.extensions.analytic.summed_statistic import bounds_of, terms_of
from edge_sdk.protocol.contract.method import Played

AGAIN = 10.0  # s after which opened sums are read again


def refuse_misfit(config: AggregatorConfig, _rounds: Rounds) -> None:
    """Refuse a run whose contract is none of its statistics; raise SettingsError with the key."""
    name, terms = contract_of(config)
    wanted = terms_of(bundle_of(config).manifest) if name else {}
    for key, value in wanted.items():
        if (found := getattr(terms, key, "no contract of that name")) != value:
            where = f"{config.file.name}: run.settings.contract: [sums] {name}"
            raise SettingsError(f"{where}: expected {key} = {value!r}, got {found!r}")


def contract_of(config: AggregatorConfig) -> tuple[str, Any]:
    """Return the name of the contract of a run, empty if it has none, and the contract or None."""
    name = getattr(settings_of(config), "contract", None) or ""
    terms = config.section("sums").contracts() if name else ()
    return name, next((one for one in terms if one.name == name), None)


class SummedRuns(ServerExtension):
    """The runs of a daemon whose statistics arrive as sums."""

    _again_at = -math.inf

    def on_tick(self, now: float) -> None:
        """Begin a pass in the contract's next period, and end it when its sum is opened.

        A sum that is not opened a period after it was closed is given up, and the pass begins again.
        """
        if now < self._again_at:
            return
        self._again_at = now + AGAIN
        for driver in self.parts.drivers:
            _, terms = contract_of(driver.engine.run.config)
            if terms is not None and driver.engine.phase == "train":
                self._follow(driver, terms)

    def _follow(self, driver: RunDriver, terms: Any) -> None:  # noqa: ANN401 - of another extension
        state: Any = driver.engine.state
        wall, period = self.parts.isolation.clock.wall(), period_of(state)
        opened = self._opened(terms.name, period) if 0 < period < wall - terms.due else None
        if opened is not None:
            manifest = driver.engine.run.bundle.manifest
            bounds = bounds_of(manifest.analytic, math.prod(manifest.forecast_shape))
            values = {"members": float(opened.members), "deviation": opened.noise * bounds[0]}
            arrays = {"total": opened.values * bounds}
        elif not period or wall > period + terms.due + terms.period:
            period, values, arrays = terms.last_begin(wall) + terms.period, {}, {}
        else:
            return
        made = Played(state.round, 0, arrays, {PERIOD: float(period), **values})
        step = self.parts.isolation.step
        step("sum of statistics", lambda: driver.adopt(made), run=driver.number)
        driver.report_closed()

    def _opened(self, name: str, period: int) -> Any:  # noqa: ANN401 - of another extension
        """Return the opened sum of a period, or None."""
        entries = self.config.index.configured(self.config.tables)
        loads = (load for one in entries if (load := one.load("opened")) is not None)
        sums = (one for load in loads for one in load(self.config, period))
        return next((one for one in sums if (one.contract, one.period) == (name, period)), None)
