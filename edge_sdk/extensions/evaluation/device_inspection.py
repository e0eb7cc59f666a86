"""Read a device without running it: model runtime, state and forecasts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edge_sdk.config import Config
from edge_sdk.forecasting.forecast import Forecast, ForecastQuality, IssuedForecast
from edge_sdk.protocol import messages as m
from edge_sdk.session.announcements import saved_message
from edge_sdk.store.rows import LearnedState
from edge_sdk.store.store import DeviceStore
from edge_sdk.training import bootstrap
from edge_sdk.training.extension import RecalledChoice, ServedVersion
from edge_sdk.training.model_runtime import ModelRuntime


@dataclass(slots=True)
class DeviceInspection:
    """A device's model runtime and state, read beside a running agent."""

    config: Config
    learner: ModelRuntime
    state: Any  # learned state of the device half
    # the saved choice of what is served; None where the fleet's model always is
    choice: RecalledChoice | None = None
    # the saved state, with run and version; None without one: then ``state`` is the bundle's first
    learned: LearnedState | None = None
    # the version of an extension that forecasts instead; None without one
    served: ServedVersion | None = None

    @classmethod
    def of(cls, config: Config) -> DeviceInspection:
        """Read the learned state and the readings of a device.

        Raises:
            EdgeError: There is no state, or its bundle is missing.
        """
        with DeviceStore.open(config.state, read_only=True) as store:
            announced = saved_message(store, m.BundleMessage, "bundle")
            bundle = bootstrap.open_bundle(config, announced)
            found = bootstrap.of_bundle(announced, bundle)
            learner = bootstrap.set_up(config, store, bundle, found)
            state, learned = bootstrap.recall(learner, store)
            recalled = config.offered("recalled")
            choice = None if recalled is None else recalled(config, store, learner, state)
            name, entries = _quality(choice).candidate, config.index.configured(config.tables)
            find = (one.load("served") for one in entries if "served" in one.row)
            versions = [one(config, store, learner, name) for one in find]
            served = next(filter(None, versions), None)
        return cls(config, learner, state, choice, learned, served)

    def forecast(self) -> Forecast:
        """Forecast the values after the newest reading."""
        return self._served_forecast() or self.learner.forecast(self.state)

    def _served_forecast(self) -> Forecast | None:
        if self.served is None:
            return None
        return self.served.forecast(self.learner.vector(self.state))

    def issue(self, issued: float) -> IssuedForecast:
        """Forecast, with issue time, model version and quality.

        Args:
            issued: Unix seconds now.
        """
        runtime, quality = self.learner, _quality(self.choice)
        run, version = (self.learned.run, self.learned.version) if self.learned else (0, -1)
        found = self._served_forecast()
        if self.served is not None and found is not None:
            runtime, quality, version = self.served.runtime, ForecastQuality(), -1
        else:
            found = self.learner.forecast(self.state)
        return runtime.issued(found, quality, now=issued, run=run, version=version)


def _quality(choice: RecalledChoice | None) -> ForecastQuality:
    return ForecastQuality() if choice is None else choice.quality
