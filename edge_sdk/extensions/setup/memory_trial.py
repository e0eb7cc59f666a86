"""Measure the memory need of a configuration in another process: start its engine under a limit, train, forecast.

The process has a state folder of its own, no link, and made-up readings that fill the history. ``check``
starts it; where the configured limit is too low, it finds one that is not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from edge_sdk import agent  # noqa: F401 - what an agent has imported when it sets the limit
from edge_sdk.client import Client, ClientParts
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError
from edge_sdk.forecasting.series import SeriesRow
from edge_sdk.limits import LimitsSection, limits_of
from edge_sdk.limits.resource_governor import limit_memory
from edge_sdk.link.fleet_settings import BrokerSection, IdentitySection, KeysSection
from edge_sdk.runtime import ENGINE, engine_name
from edge_sdk.training import bootstrap

MIB: Final = 2**20
STEP: Final = 8
"""MiB between two limits that are tried."""
MOST: Final = 512
"""MiB above the configured limit at which the search ends."""
_PATIENCE: Final = 300.0  # seconds for one trial
_NEWEST: Final = 1_700_006_400  # time of the newest made-up reading, Unix seconds


def memory_finding(config: Config, path: Path) -> str:
    """Return the sentence that the configured memory limit suffices.

    Raises:
        ConfigError: It does not suffice; the message says what does.
    """
    limit = limits_of(config.limits).memory
    if limit is None:
        return "no limit"
    mib, engine = limit // MIB, engine_name()
    why = trial(path, mib)
    if not why:
        return f"{mib} MiB suffice for the engine {engine}, tried with a full history"
    enough = least_above(mib, lambda one: not trial(path, one))
    needed = f"{enough} MiB suffice" if enough else f"not even {mib + MOST} MiB suffice"
    has_other = engine != "numpy" and not trial(path, mib, {ENGINE: "numpy"})
    other = f", or {ENGINE}=numpy in the environment" if has_other else ""
    raise ConfigError(
        f"limits: {mib} MiB of data do not suffice for the engine {engine}: {needed} ({why})",
        hint=f"memory_mb = {enough} in [limits]{other}" if enough else "remove the limit",
    )


def least_above(limit: int, is_enough: Callable[[int], bool]) -> int | None:
    """Return the least sufficient memory limit above a given one, in steps; None if there is none.

    Args:
        limit: MiB that do not suffice.

    >>> least_above(64, lambda one: one >= 83), least_above(64, lambda one: False)
    (88, None)
    """
    reach = 1
    while not is_enough(limit + STEP * reach):
        if STEP * reach >= MOST:
            return None
        reach *= 2
    low, high = reach // 2, reach
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(limit + STEP * middle) else (middle, high)
    return limit + STEP * high


def trial(path: Path, mib: int, settings: Mapping[str, str] = MappingProxyType({})) -> str:
    """Start, train and forecast under a memory limit in another process; return the failure, or nothing.

    Args:
        path: File of the configuration.
        settings: Variables beside those of the environment.
    """
    words = [sys.executable, "-m", __spec__.name, str(path), str(mib)]
    environ = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ, **settings}
    try:
        ended = subprocess.run(  # noqa: S603 - this program
            words, capture_output=True, text=True, check=False, timeout=_PATIENCE, env=environ
        )
    except subprocess.TimeoutExpired:
        return f"no end after {_PATIENCE:g} s"
    if not ended.returncode:
        return ""
    return (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]


def learn_once(config: Config, folder: Path) -> None:
    """Learn and forecast with a configuration's bundle, alone, in an empty folder."""
    bundle = bootstrap.open_bundle(config, None)
    if not config.is_alone:
        from edge_sdk.link import mqtt  # noqa: F401, PLC0415 - as a device with a broker
    without = config.extensions_without("of_fleet")
    for entry in config.index.having("candidate"):  # an agent without the memory has none
        without |= dict.fromkeys(entry.row.get("keys", {}), False)
    alone = replace(
        config,
        state=folder / "state",
        keys=KeysSection(folder / "device.key"),
        broker=BrokerSection(),
        identity=IdentitySection(),
        extensions=without,
        participation=(),
        source=(),
        output=(),
        limits=LimitsSection(),
    )
    with Client(alone, parts=ClientParts(bundles=lambda _config, _announced: bundle)) as client:
        series = client.learner.series
        newest = _NEWEST // series.step
        for stream in series.streams:
            slots = range(newest - series.capacity + 1, newest + 1)
            client.learner.load([SeriesRow(stream, at, 1.0 + at % 24) for at in slots])
        client.tick()  # a round
        client.tick()  # the own model, and the choice
        client.forecast()


if __name__ == "__main__":
    limit_memory(int(sys.argv[2]) * MIB)
    with tempfile.TemporaryDirectory() as name:
        learn_once(Config.load(sys.argv[1]), Path(name))
