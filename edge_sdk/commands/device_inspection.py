"""Read a device without running it: model runtime, state, forecasts and privacy ledger."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from edge_sdk.agent import open_sources, read_all
from edge_sdk.app.permissions import open_private
from edge_sdk.config import Config
from edge_sdk.forecasting.calendar_features import Floats
from edge_sdk.forecasting.forecast import Forecast
from edge_sdk.forecasting.forecast_choice import ForecastChoice
from edge_sdk.forecasting.issued_forecast import IssuedForecast
from edge_sdk.methods import METHODS
from edge_sdk.participations import former_charges
from edge_sdk.privacy.ledger import ParticipationCharges, PrivacyAccount
from edge_sdk.privacy.noise_calibration import NoisePlan
from edge_sdk.session.announcements import saved_message
from edge_sdk.store.schema import FILE
from edge_sdk.store.store import DeviceStore
from edge_sdk.training import bootstrap, installed_bundle
from edge_sdk.training.fine_tuning import why_fleet
from edge_sdk.training.issue import issued_forecast
from edge_sdk.training.model_runtime import ModelRuntime
from edge_sdk.training.rollout_member import served_version
from edge_sdk.training.saved_selection import DeviceCandidates
from edge_sdk.training.trial_version import TrialVersion
from edge_sdk.wire.protocol import messages as m

_PROOF = 72


@dataclass(slots=True)
class DeviceInspection:
    """A device's model runtime and state, read beside a running agent.

    Attributes:
        config: Configuration of the device.
        learner: Model runtime of the bundle.
        state: Learned state of the device half.
        candidates: Saved candidates for the forecast; empty where none are compared.
        is_trained: Whether a trained state was saved; else ``state`` is the bundle's first.
        run: Training run of the saved state; 0 without one.
        version: Version of its common model; -1 without one.
        trial: The version of a rollout that the device serves; None without one.
    """

    config: Config
    learner: ModelRuntime
    state: Any
    candidates: DeviceCandidates = field(default_factory=DeviceCandidates)
    is_trained: bool = False
    run: int = 0
    version: int = -1
    trial: TrialVersion | None = None

    @classmethod
    def of(cls, config: Config, *, beyond: bool = False) -> DeviceInspection:
        """Read the learned state and the readings of a device.

        Args:
            config: Configuration of the device.
            beyond: True to read also, in memory only, the readings of its sources after their
                ``until``: the truth for evaluating forecasts.

        Raises:
            EdgeError: There is no state, or its bundle is missing.
        """
        with DeviceStore.open(config.state, read_only=True) as store:
            announced = announced_of(store)
            bundle = installed_bundle.open_bundle(config, announced)
            found = installed_bundle.of_bundle(announced, bundle)
            learner = bootstrap.set_up(config, store, bundle, found, METHODS)
            state, learned = bootstrap.recall(learner, store)
            candidates = DeviceCandidates()
            if not why_fleet(config, learner):
                candidates = DeviceCandidates.recall(learner, store)
                learner.serve(candidates.served(learner, state))
            trial = served_version(config, store, learner, candidates.selection.choice.name)
        if beyond:
            whole = tuple({k: v for k, v in s.items() if k != "until"} for s in config.source)
            sources = open_sources(replace(config, source=whole))
            read_all(sources, lambda reading: learner.observe(reading, np.inf))
        run, version = (learned.run, learned.version) if learned is not None else (0, -1)
        return cls(config, learner, state, candidates, learned is not None, run, version, trial)

    def forecast(self) -> Forecast:
        """Forecast the values after the newest reading."""
        found = self._trial_forecast()
        return self.learner.forecast(self.state) if found is None else found

    def _trial_forecast(self) -> Forecast | None:
        """Forecast with the version of a rollout that the device serves; None without one."""
        return None if self.trial is None else self.trial.forecast(self.learner.vector(self.state))

    def issue(self, issued: float) -> IssuedForecast:
        """Forecast, with issue time, model version and quality.

        Args:
            issued: Unix seconds now.
        """
        choice, found = self.candidates.selection.choice, self._trial_forecast()
        if self.trial is not None and found is not None:
            return issued_forecast(
                self.trial.runtime, found, ForecastChoice(), now=issued, run=self.run, version=-1
            )
        return issued_forecast(
            self.learner,
            self.learner.forecast(self.state),
            choice,
            now=issued,
            run=self.run,
            version=self.version,
        )

    def write_rolling(self, begin: float, end: float, out: Path) -> int:
        """Write forecasts of every complete window whose first target is in a time span as CSV.

        Columns: ``origin`` (Unix seconds of the first target), ``step`` (1 … horizon),
        ``forecast``, ``truth`` (empty where unobserved); and ``lower``, ``upper``, where the model
        forecasts quantiles, as they would have been issued.

        Returns:
            Number of windows.
        """
        times, forecasts, truth = self.learner.rolling(self.state, begin, end)
        ends = self.learner.intervals(self.state, begin, end)
        extra = () if ends is None else ("lower", "upper")
        between = np.empty((*forecasts.shape, 0)) if ends is None else ends
        with open_private(out, newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(("origin", "step", "forecast", "truth", *extra))
            for origin, *line in zip(times.tolist(), forecasts, truth, between, strict=True):
                rows.writerows(_lines(origin, *line))
        return len(times)


def _lines(
    origin: int, forecasts: Floats, truth: Floats, between: Floats
) -> Iterable[tuple[Any, ...]]:
    for step, (value, seen, ends) in enumerate(zip(forecasts, truth, between, strict=True), 1):
        around = [f"{end:.9g}" for end in ends]
        yield origin, step, f"{value:.9g}", "" if np.isnan(seen) else f"{seen:.9g}", *around


def announced_of(store: DeviceStore) -> m.BundleMessage | None:
    """Return the saved announcement of the run."""
    return saved_message(store, m.BundleMessage, "bundle")


def plan_of(config: Config, announced: m.BundleMessage | None) -> NoisePlan:
    """Return the calibrated privacy mechanism of the device."""
    manifest = installed_bundle.open_bundle(config, announced).manifest
    method = announced.method if announced else config.accept.methods[0]
    shared = manifest.spec(announced.shared if announced else None).shared_size
    return bootstrap.plan(config, manifest, method, shared)


def account_of(
    store: DeviceStore, plan: NoisePlan, beside: tuple[ParticipationCharges, ...] = ()
) -> PrivacyAccount:
    """Sum the charges of the ledger, and those that only the aggregator recorded.

    Args:
        store: Store of one participation.
        plan: Its privacy mechanism.
        beside: Charges of the device's other participations.
    """
    account = bootstrap.account_of(store, plan)
    limits = (account.most, *(other.allowed for other in beside))
    most = min((limit for limit in limits if limit is not None), default=None)
    account = account.plus(*plan.unseen(0, store.numbers().spent - account.released))
    return replace(account, beside=beside, most=most)


def charges_beside(config: Config, name: str) -> tuple[ParticipationCharges, ...]:
    """Return the charges of the device's other participations, former ones included.

    Args:
        config: Configuration of the device.
        name: Id of the participation whose own charges are left out.

    Raises:
        EdgeError: A state folder or a bundle cannot be read.
    """
    others = [one for one in config.participants() if one.id != name]
    found = tuple(_charges_of(one) for one in others if (one.state / FILE).exists())
    return (*found, *former_charges(config))


def _charges_of(one: Config) -> ParticipationCharges:
    with DeviceStore.open(one.state, read_only=True) as store:
        account = account_of(store, plan_of(one, announced_of(store)))
        allowed = store.fact("releases allowed", -1)
    return ParticipationCharges(
        account.charges, account.released, allowed if allowed >= 0 else None
    )
