"""A meter in a dozen lines: observe, take part in the fleet's learning, forecast.

    python examples/quickstart_meter.py meter.toml

The configuration names the device, its model and the broker (see `examples/meter.toml`). The model
needs nothing but energy. Without a broker the device observes and forecasts all the same.
"""

import math
import sys
import time

from edge_sdk import Client, Config, EdgeError, Reading

HOUR = 3600
DAY = 24 * HOUR


def intervals(end: float, days: int = 10):
    """Stand in for your meter: the energy of every hour of the last days."""
    first = end // HOUR * HOUR - days * DAY
    for start in range(int(first), int(end) - HOUR, HOUR):
        yield start, 0.8 + 0.5 * math.sin(2 * math.pi * start / DAY)


def main(path: str) -> None:
    with Client(Config.load(path)) as client:
        for start, kwh in intervals(time.time()):
            client.observe(Reading("elec.import.energy", start, kwh))
            client.tick()
        if client.is_ready:
            forecast = client.forecast()
            print(f"next hour: {forecast.median[0]:.3f} {forecast.unit}, by {forecast.source}")


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except EdgeError as error:
        sys.exit(f"{error}\n{error.hint}".rstrip())
