"""Days of readings of one home, and of rounds with them: what tests of served forecasts share."""

from __future__ import annotations

import numpy as np

from edge_sdk.forecasting.series import Reading

STREAM, DAY, BEGUN = "elec.import.energy", 24, 1_700_006_400  # a midnight
WRONG = np.array([-0.9, 0.4, -0.8, 0.1], np.float32)
"""A common model that fits the rest of the fleet, and not this device."""
NEAR = np.array([0.0, 0.0, 0.0, 0.7], np.float32)
STILL = {"vals": {"steps": 1.0, "rate": 1e-9}}
"""A task that leaves the received model as it is."""


def load(hour):
    """A home that runs at night, with some noise of its own."""
    rng = np.random.default_rng(hour)
    return 2.0 + np.cos(2 * np.pi * hour / DAY) + 0.05 * rng.normal()


def observe(client, days, *, first=0, value=load):
    for hour in range(first * DAY, (first + days) * DAY):
        client.observe(Reading(STREAM, BEGUN + hour * 3600, value(hour)))


def live(fleet, first, days, *, w=WRONG, value=load, task=STILL):
    """Let days pass: a day of readings, then a round under a common model."""
    client = fleet.device.client
    for day in range(first, first + days):
        observe(client, 1, first=day, value=value)
        fleet.server.open_round(day, day, w, **task)
        fleet.run(14)
        fleet.clock.at += 100.0  # what the round interrupted is tried again
        fleet.run(8)
