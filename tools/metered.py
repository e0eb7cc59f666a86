"""Traffic of charging sites: measured on a fleet of the real programs, and per day.

    python -m tools.metered [--rounds-a-day 4]

Eight sites of the shipped set train over a real broker, by every method that the aggregator's
configuration offers them; the bytes are those that devices counted themselves, envelopes included,
MQTT, TLS and IP on top. The cost of a round does not depend on the readings. Requests for a
forecast through the server's graph are counted too, one for every new window.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firmware_sim.commands.fleet_run import FleetRun
from firmware_sim.reports.progress_display import display
from firmware_sim.results import short
from firmware_sim.samples import sample_set
from firmware_sim.scenario import RunSettings, Scenario

ITERATIONS, BATCH, ROUNDS = 16, 32, 2
_GRAPH = {"kind": "diffusion", "capacity": 8}
_TURNS = {"batch": BATCH, "deadline": 20.0}


@dataclass(frozen=True, slots=True)
class Way:
    """One method and its model."""

    name: str
    bundle: str  # name of a shipped bundle
    method: str
    settings: Mapping[str, Any]

    @property
    def scenario(self) -> Scenario:
        graph = _GRAPH if "turns" in self.settings else {}
        learning = RunSettings(
            self.method, rounds=ROUNDS, settings=self.settings, deadline="10m", graph=graph
        )
        chosen = Scenario("bytes", "chargers", 8, self.bundle, learning)
        return chosen.first_days(60, sample_set("chargers"))


def ways() -> Iterator[Way]:
    """Yield the methods, cheapest first."""
    for bundle in ("chargers-week-6", "chargers-6"):
        yield Way(f"PFL, {bundle}", bundle, "pfl", {"steps": ITERATIONS})
    for name, turns in (
        ("alternating", {"schedule": "alternating"}),
        ("alternating, float16", {"schedule": "alternating", "float16": True}),
        ("joint, float16", {"float16": True}),
        ("joint", {}),
    ):
        values = {"steps": ITERATIONS, "turns": _TURNS | turns}
        yield Way(f"PFGL, {name}", "chargers-6", "pfgl", values)


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes that one device counted."""

    up: float
    down: float
    forecast: float  # both ways, for one forecast; 0 without a graph on the server


def measured(way: Way) -> Bytes:
    """Return the bytes of one device."""
    samples = sample_set("chargers")
    with tempfile.TemporaryDirectory(prefix="gridfed-bytes-") as out, display() as shown:
        run = FleetRun(way.scenario, samples, Path(out), shown, is_in_process=True)
        each = run.run().each
    served = run.counts["bytes up serve"] + run.counts["bytes down serve"]
    return Bytes(each["bytes_up"], each["bytes_down"], served / (run.counts["graph asked"] or 1))


def main() -> None:
    """Measure every method and print a table."""
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
