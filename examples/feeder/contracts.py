"""Append contracts whose day is over to an operator's configuration.

    python contracts.py operator/operator.toml --witness witness/sum-keys.toml

A day of contracts begins at midnight; here it begins at a whole hour, and is closed some minutes from now,
so that nobody has to wait for a day.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

HOUR, DAY = 3600, 86_400
SUMS = """
[sums]
witness = "witness-1"                 # the witness's id on the broker
{keys}
"""
CONTRACT = """
[[sums.contract]]
name = "feeder-{source}"
source = "{source}"
stream = "elec.import.energy"
unit = "kWh"
lowest = 0.0
highest = 20.0
resolution = 0.001
length = 24
offset = "{offset}s"
due = "{due}s"
least = 8
cohort = "feeder"
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("configuration", type=Path)
    parser.add_argument("--witness", type=Path, required=True, help="what `sum-keys` printed")
    parser.add_argument("--minutes", type=float, default=3.0, help="until the day is closed (3)")
    options = parser.parse_args()
    now = int(time.time())
    until = (now - HOUR // 4) // HOUR * HOUR  # homes.py wrote its readings before
    text = SUMS.format(keys=options.witness.read_text().strip())
    for source, begin in (("history", until - DAY), ("tomorrow", until)):
        due = now - begin + round(60 * options.minutes)
        text += CONTRACT.format(source=source, offset=until % DAY, due=due)
    with options.configuration.open("a") as file:
        file.write(text)


if __name__ == "__main__":
    main()
