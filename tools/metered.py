"""What charging sites send and receive: measured on a fleet of the real programs, and per day.

    python -m tools.metered [--rounds-a-day 4]

Eight sites of the shipped set learn over a real broker, by every way that the aggregator's
configuration offers them; the bytes are those that devices counted themselves, envelopes included,
MQTT, TLS and IP on top. What one round costs does not depend on what was measured there. A forecast
with the graph's word is counted too: by the questions for it, one for every new window.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firmware_sim.commands.fleet import FleetRun
from firmware_sim.reports.progress_display import display
from firmware_sim.results import short
from firmware_sim.samples import sample_set
from firmware_sim.scenario import Learning, Scenario

ITERATIONS, BATCH, ROUNDS = 16, 32, 2
_GRAPH = {"kind": "diffusion", "capacity": 8}
_TURNS = {"batch": BATCH, "deadline": 20.0}


@dataclass(frozen=True, slots=True)
class Way:
    """One way to learn.

    Attributes:
        name: For people.
        bundle: A shipped one.
        method: The aggregator's.
        settings: The method's own.
    """

    name: str
    bundle: str
    method: str
    settings: Mapping[str, Any]

    @property
    def scenario(self) -> Scenario:
        """Two rounds of it."""
        graph = _GRAPH if "turns" in self.settings else {}
        learning = Learning(
            self.method, rounds=ROUNDS, settings=self.settings, deadline="10m", graph=graph
        )
        chosen = Scenario("bytes", "chargers", 8, self.bundle, learning)
        return chosen.first_days(60, sample_set("chargers"))


def ways() -> Iterator[Way]:
    """Yield the ways, cheapest first."""
    for bundle in ("chargers-week-6", "chargers-6"):
        yield Way(f"PFL, {bundle}", bundle, "pfl", {"steps": ITERATIONS})
    for name, turns in (
        ("alternating", {"schedule": "alternating"}),
        ("alternating, float16", {"schedule": "alternating", "half": True}),
        ("joint, float16", {"half": True}),
        ("joint", {}),
    ):
        told = {"steps": ITERATIONS, "turns": _TURNS | turns}
        yield Way(f"PFGL, {name}", "chargers-6", "pfgl", told)


@dataclass(frozen=True, slots=True)
class Bytes:
    """What one device counted.

    Attributes:
        up: In one round.
        down: In one round.
        forecast: Both ways, for one forecast; 0 where no server has a word in it.
    """

    up: float
    down: float
    forecast: float


def measured(way: Way) -> Bytes:
    """Return the bytes of one device."""
    samples = sample_set("chargers")
    with tempfile.TemporaryDirectory(prefix="gridfed-bytes-") as out, display() as shown:
        run = FleetRun(way.scenario, samples, Path(out), shown, is_in_process=True)
        each = run.run().each
    served = run.counts["bytes up serve"] + run.counts["bytes down serve"]
    return Bytes(each["bytes_up"], each["bytes_down"], served / (run.counts["graph asked"] or 1))


def main() -> None:
    """Measure every way and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds-a-day", type=int, default=4, metavar="N", help="(4)")
    parser.add_argument("--forecasts-a-day", type=int, default=24, metavar="N", help="(24)")
    parser.add_argument("--only", default="", metavar="TEXT", help="ways whose name has it")
    args = parser.parse_args()
    heads = ("up a round", "down a round", f"both, {args.rounds_a_day} rounds a day")
    last = f"{args.forecasts_a_day} forecasts a day"
    print(f"| {ITERATIONS} iterations a round, batch {BATCH} | {' | '.join((*heads, last))} |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for way in (x for x in ways() if args.only in x.name):
        told = measured(way)
        day = args.rounds_a_day * (told.up + told.down)
        counts = (told.up, told.down, day, args.forecasts_a_day * told.forecast)
        print(f"| {way.name} | {' | '.join(map(short, counts))} |", flush=True)


if __name__ == "__main__":
    main()
