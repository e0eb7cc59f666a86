"""Mark the holidays that the owner lists in the windows of a bundle of profiles.

A window has the time in its calendar channels: the slot of the day, the same slot ahead, and the day
of the week. On a holiday their number is raised by the number of slots of a day, or by 7. So a bundle
needs no further channel, and a window without holidays is what it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, tzinfo

import numpy as np

from edge_sdk.config import Config
from edge_sdk.errors import ConfigError
from edge_sdk.forecasting.calendar_features import DAY, Ints, local_seconds
from edge_sdk.forecasting.windows import ChannelFrame
from edge_sdk.protocol.contract.manifest import Manifest

EPOCH = date(1970, 1, 1).toordinal()


def days_of(dates: Sequence[str]) -> Ints:
    """Return days since 1970 of dates such as 2026-12-25.

    Raises:
        ConfigError: One of them is no date.

    >>> days_of(["1970-01-02", "1971-01-01"]).tolist()
    [1, 365]
    """
    try:
        found = [date.fromisoformat(one).toordinal() for one in dates]
    except ValueError as error:
        raise ConfigError(
            f"forecast.holidays: {error}", hint='write dates as "2026-12-25"'
        ) from error
    return np.array(found, np.int64) - EPOCH


def checked(config: Config) -> dict[str, str]:
    """Return what ``check`` prints of the holidays; raise as ``days_of`` does."""
    days = days_of(config.tables["forecast.holidays"])
    if not len(days):
        return {}
    return {"holidays": f"{len(days)}, the last {date.fromordinal(int(days.max()) + EPOCH)}"}


def with_holidays(
    frame: ChannelFrame, manifest: Manifest, days: Ints, zone: tzinfo = UTC
) -> ChannelFrame:
    """Return a frame in whose calendar channels some days since 1970 are holidays, in its time zone."""
    step, channels = manifest.window.step_seconds, frame.channels.copy()
    for i, one in enumerate(manifest.features):
        if one.kind == "calendar" and one.what in ("slot_of_day", "day_of_week"):
            local = local_seconds(frame.times + (one.lead_steps or 0) * step, zone)
            raised = (7 if one.what == "day_of_week" else DAY // step) / (one.high - one.low)
            channels[np.isin(local // DAY, days), i] += np.float32(raised)
    return replace(frame, channels=channels)
