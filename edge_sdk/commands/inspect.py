"""Inspect a device without running it: state, forecasts, and privacy cost of a round."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edge_sdk.agent import open_sources, read_all
from edge_sdk.app.permissions import open_private
from edge_sdk.bundle import SDK_VERSION
from edge_sdk.config import Config
from edge_sdk.forecasting.calendar_features import Floats
from edge_sdk.forecasting.forecast import Forecast
from edge_sdk.limits.resource_limits import limits_of
from edge_sdk.methods import METHODS
from edge_sdk.privacy import datasheet as words
from edge_sdk.privacy.ledger import PrivacyAccount
from edge_sdk.privacy.noise_calibration import NoisePlan
from edge_sdk.session.certificate_monitor import days_left
from edge_sdk.session.session import SPENT
from edge_sdk.session.task_inbox import filed
from edge_sdk.store.schema import FILE
from edge_sdk.store.store import DeviceStore, LearnedState
from edge_sdk.training import bootstrap
from edge_sdk.training.active_run import RETURNS
from edge_sdk.training.model_runtime import ModelRuntime
from edge_sdk.training.retention import history_of
from edge_sdk.wire.contract.parameter_layout import ParamSpec
from edge_sdk.wire.protocol import messages as m
from edge_sdk.wire.protocol.codec import encode
from edge_sdk.wire.protocol.msgpack_reader import binary, text

_PROOF = 72


@dataclass(slots=True)
class DeviceInspection:
    """A device's model runtime and state, read beside a running agent."""

    config: Config
    learner: ModelRuntime
    state: Any

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
            announced = _announced(store)
            bundle = bootstrap.open_bundle(config, announced)
            learner = bootstrap.set_up(config, store, bundle, announced, METHODS)
            state, _ = bootstrap.recall(learner, store)
        if beyond:
            whole = tuple({k: v for k, v in s.items() if k != "until"} for s in config.source)
            sources = open_sources(replace(config, source=whole))
            read_all(sources, lambda reading: learner.observe(reading, np.inf))
        return cls(config, learner, state)

    def forecast(self) -> Forecast:
        """Forecast the values after the newest reading."""
        return self.learner.forecast(self.state)

    def write_rolling(self, begin: float, end: float, out: Path) -> int:
        """Write forecasts of every complete window whose first target is in a time span as CSV.

        Columns: ``origin`` (Unix seconds of the first target), ``step`` (1 … horizon),
        ``forecast``, ``truth`` (empty where unobserved); and ``lower``, ``upper``, where the model
        forecasts quantiles, as they would have been issued.

        Returns:
            Number of windows.
        """
        times, told, truth = self.learner.rolling(self.state, begin, end)
        ends = self.learner.intervals(self.state, begin, end)
        extra = () if ends is None else ("lower", "upper")
        between = np.empty((*told.shape, 0)) if ends is None else ends
        with open_private(out, newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(("origin", "step", "forecast", "truth", *extra))
            for origin, *line in zip(times.tolist(), told, truth, between, strict=True):
                rows.writerows(_lines(origin, *line))
        return len(times)


def status(config: Config) -> dict[str, Any]:
    """Read a device's state beside a running agent. It contains no measured value.

    Raises:
        StoreError: There is no state yet.
    """
    with DeviceStore.open(config.state, read_only=True) as store:
        numbers, learned, outbox = store.numbers(), store.learned(), store.outbox()
        announced = _announced(store)
        plan, days = _plan(config, announced), days_left(config)
        account, one = _account(store, plan), plan.release()
        told = "" if account.has_room(one) else SPENT
        return {
            "id": config.id,
            "fleet": config.fleet,
            "bundle": announced.name if announced else config.bundle,
            "method": announced.method if announced else None,
            "run": learned.run if learned else 0,
            "round": learned.round if learned else -1,
            "version": learned.version if learned else -1,
            "life": numbers.life,
            "spent": numbers.spent,
            "outbox": [{"round": e.round, "attempts": e.attempts} for e in outbox],
            "models returned": store.fact(RETURNS),
            "starts": store.fact("starts"),
            "connections": store.fact("conn"),
            "stopped": "command" if store.fact("stopped") else told,
            "readings": store.count_readings(),
            "bytes": store.size(),
            "history": kept(config, store, announced),
            "privacy": words.promise(plan),
            "budget": account.summary(one),
            **({"certificate days left": days} if days else {}),
            **_among(learned),
        }


def kept(config: Config, store: DeviceStore, announced: m.BundleMessage | None) -> dict[str, Any]:
    """Return the days of readings stored, and the maximum days and bytes of the history."""
    history = history_of(config, bootstrap.open_bundle(config, announced).manifest)
    span = store.span_readings()
    days = 0.0 if span is None else (span[1] - span[0] + 1) * history.step / 86_400
    most = {"days at most": round(history.days, 2), "bytes at most": history.bytes}
    return {"days": round(days, 2), **most, "limit": history.limit}


def _among(learned: LearnedState | None) -> dict[str, Any]:
    """Return the state of the peer exchange, if there is one."""
    kept = learned.leaves.get("gossip") if learned is not None else None
    if kept is None:
        return {}
    epoch, step = int(kept["epoch"]), int(kept["place"][0])
    return {"neighbours": {"epoch": epoch, "step": step, "last counted": dict(kept["last"])}}


def budget(config: Config) -> dict[str, Any]:
    """Return the bytes and the privacy cost of a round, and the used and remaining budget.

    ``text`` explains it in words.

    Raises:
        EdgeError: The bundle is missing, or the privacy section cannot be satisfied.
    """
    announced, account = None, None
    if (config.state / FILE).exists():
        with DeviceStore.open(config.state, read_only=True) as store:
            announced = _announced(store)
            plan = _plan(config, announced)
            account = _account(store, plan)
    else:
        plan = _plan(config, None)
    account = account or PrivacyAccount.of((), plan.limit, most=plan.most(None))
    manifest = bootstrap.open_bundle(config, announced).manifest
    spec = manifest.spec(announced.shared if announced else None)
    return {
        "bundle": manifest.name,
        "layers": _layers(spec),
        "shared": spec.shared_size,
        "personal": spec.size - spec.shared_size,
        "bytes_up": update_bytes(config, spec),
        "bytes_down": 4 * spec.shared_size,
        "releases": account.told,
        "privacy": words.promise(plan),
        "budget": account.summary(plan.release()),
        "spent": not account.has_room(plan.release()),
        "charges": words.table(account),
        "not protected": words.gaps(plan),
        "text": words.explained(plan, account),
        "limits": resource_usage(config),
    }


def resource_usage(config: Config) -> dict[str, dict[str, float | None]]:
    """Return the resource limits and the recorded use.

    ``limit`` is None where there is none; ``used`` is of the last recorded day, and for memory the
    peak. Bytes, and seconds of wake time.
    """
    facts = dict.fromkeys(("used", "flash", "wake", "peak"), 0)
    if (config.state / FILE).exists():
        with DeviceStore.open(config.state, read_only=True) as store:
            facts = {name: store.fact(name) for name in facts}
    limits = limits_of(config.limits)
    return {
        "memory": {"limit": limits.memory, "used": 1024 * facts["peak"]},
        "flash a day": {"limit": limits.daily_flash_bytes, "used": facts["flash"]},
        "link a day": {"limit": limits.daily_link_bytes, "used": facts["used"]},
        "wake time a day": {"limit": limits.daily_wake_time, "used": facts["wake"] / 1000},
    }


def datasheet(config: Config) -> dict[str, Any]:
    """Return the privacy data sheet of a device: its configuration and its releases.

    Raises:
        EdgeError: As ``budget``.
    """
    version = ".".join(map(str, SDK_VERSION))
    if not (config.state / FILE).exists():
        plan = _plan(config, None)
        return words.sheet(plan, PrivacyAccount.of((), plan.limit, most=plan.most(None)), version)
    with DeviceStore.open(config.state, read_only=True) as store:
        plan = _plan(config, _announced(store))
        return words.sheet(plan, _account(store, plan), version)


def _announced(store: DeviceStore) -> m.BundleMessage | None:
    return filed(store, m.BundleMessage, "bundle")


def _plan(config: Config, announced: m.BundleMessage | None) -> NoisePlan:
    manifest = bootstrap.open_bundle(config, announced).manifest
    method = announced.method if announced else config.accept.methods[0]
    shared = manifest.spec(announced.shared if announced else None).shared_size
    return bootstrap.plan(config, manifest, method, shared)


def _account(store: DeviceStore, plan: NoisePlan) -> PrivacyAccount:
    """Sum the charges of the ledger, and those that only the aggregator recorded."""
    account = bootstrap.account_of(store, plan)
    return account.plus(*plan.unseen(0, store.numbers().spent - account.told))


def update_bytes(config: Config, spec: ParamSpec) -> int:
    """Return the payload bytes of one update with its envelope (MQTT, TLS and IP come on top)."""
    if not spec.shared_size:
        return 0
    update = m.UpdateMessage(
        run=1,
        round=100,
        base=100,
        life=1,
        seq=100,
        spent=100,
        spec=spec.digest,
        part="delta",
        enc="f4",
        n=64,
        vals={"loss": 0.5},
        blob=bytes(4 * spec.shared_size),
    )
    return 2 + sum(
        map(len, (text("update"), text(config.id), binary(encode(update)), binary(bytes(_PROOF))))
    )


def _layers(spec: ParamSpec) -> list[dict[str, Any]]:
    return [
        {"name": layer.name, "scalars": layer.size, "shared": layer.name in spec.shared_names}
        for layer in spec.layers
    ]


def _lines(origin: int, told: Floats, truth: Floats, between: Floats) -> Iterable[tuple[Any, ...]]:
    for step, (value, seen, ends) in enumerate(zip(told, truth, between, strict=True), 1):
        around = [f"{end:.9g}" for end in ends]
        yield origin, step, f"{value:.9g}", "" if np.isnan(seen) else f"{seen:.9g}", *around
