"""A meter in a dozen lines: observe, take part in the fleet's learning, forecast.

    python examples/quickstart_meter.py meter.toml

The configuration says who the device is, which model it runs and where the broker is (see
`examples/meter.toml`). Without a broker it observes and forecasts all the same.
"""

import math
import sys
import time

from edge_sdk import Client, Config, Reading

STEP = 900  # seconds: what the bundle load-lstm works on
DAY = 96 * STEP


def intervals(end: float, days: int = 3):
    """Stand in for your meter: the last days in quarter hours, and the weather meanwhile."""
    first = end // STEP * STEP - days * DAY
    for start in range(int(first), int(end) - STEP, STEP):
        kwh = 0.3 + 0.2 * math.sin(2 * math.pi * start / DAY)
        yield start, kwh, 12.0 + 6.0 * math.sin(2 * math.pi * start / DAY), 3.0


def main(path: str) -> None:
    with Client(Config.load(path)) as client:
        for start, kwh, temperature, wind in intervals(time.time()):
            client.observe(Reading("elec.import.energy", start, kwh))
            client.observe(Reading("weather.temperature", start, temperature))
            client.observe(Reading("weather.wind_speed", start, wind))
            client.tick()
        if client.is_ready:
            forecast = client.forecast()
            print(
                f"next {STEP // 60} minutes: {forecast.median[0]:.3f} {forecast.unit}, "
                f"by {forecast.source}"
            )


if __name__ == "__main__":
    main(sys.argv[1])
