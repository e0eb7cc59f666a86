"""Bind the schedule of a configuration."""

from __future__ import annotations

from aggregator.config.schedule import Schedule, ScheduleError, schedule_of
from aggregator.config.sections import AggregatorConfig
from edge_sdk.app.settings import SettingsError
from edge_sdk.wire.contract.method import CONTRACTS, Up


def config_schedule(config: AggregatorConfig) -> Schedule:
    """Return the schedule of rounds; an exchange between neighbours has an interval of its own.

    Raises:
        SettingsError: The time zone or a window is refused.
    """
    try:
        schedule = schedule_of(config.run.schedule, config.fleet)
    except ScheduleError as error:
        where = f"{config.file.name}: run.schedule.{error.key}"
        raise SettingsError(f"{where}: {error}") from error
    asks = CONTRACTS.get(config.run.method, {}).values()
    return Schedule() if any(ask.up is Up.PEERS for ask in asks) else schedule
