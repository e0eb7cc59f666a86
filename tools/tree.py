"""Run a tree of aggregators beside a star of the same devices, as real processes on real brokers.

A tree has a parent and sites. Each site is a ``gridfed-aggregator run`` with ``[parent]`` and devices
of its own; sites and parent have a broker each. The devices run in this process, as in
``gridfed-sim fleet``. A star is one aggregator with the devices of all sites.

  python -m tools.tree                                six sites of 24 devices, two of them die
  python -m tools.tree --sites 2 --devices 2 --rounds 3
"""

from __future__ import annotations

import argparse
import json
import signal
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from firmware_sim.fleet.federation import Federation, fetched, free_port, start_broker
from firmware_sim.fleet.in_process import Fleet, over_mqtt, populate
from firmware_sim.fleet.processes import ProcessGroup, RunningProgram, command, run
from firmware_sim.fleet.run_files import Device, Prepared, aggregator_table, prepare, toml
from firmware_sim.reports.forecast_errors import errors
from firmware_sim.samples import SampleSet, sample_set
from firmware_sim.scenario import RunSettings, Scenario

LIMIT = 900.0
"""Seconds until a run must have ended."""

SETTINGS = {"steps": 8, "rate": 0.003}


def fleet_of(samples: SampleSet, devices: int) -> SampleSet:
    """Return a number of devices with names of their own; readings are reused."""
    kinds = samples.samples
    named = (kinds[number % len(kinds)] for number in range(devices))
    return replace(
        samples,
        samples=tuple(
            replace(one, device=f"{one.device}-{number + 1}") for number, one in enumerate(named)
        ),
    )


def part_of(samples: SampleSet, site: int, devices: int) -> SampleSet:
    """Return the devices of one site: every site has as many, in order."""
    return replace(samples, samples=samples.samples[site * devices : (site + 1) * devices])


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a configuration file that the simulator wrote."""
    table = tomllib.loads(path.read_text("utf-8"))
    change(table)
    path.write_text(toml(table), "utf-8")


@dataclass
class Tree:
    """Files and programs of a tree."""

    folder: Path  # everything lies below it
    family: ProcessGroup
    parent: Prepared  # files of the parent, which has no devices
    sites: tuple[Prepared, ...]
    samples: SampleSet  # readings of all devices
    chosen: Scenario
    # running aggregators by name: ``parent``, ``site-1``, …
    programs: dict[str, RunningProgram] = field(default_factory=dict)

    @classmethod
    def prepare(
        cls,
        folder: Path,
        family: ProcessGroup,
        *,
        urls: tuple[str, str],
        samples: SampleSet,
        chosen: Scenario,
        sites: int,
        parent_run: Mapping[str, Any],
        parent_keys: Mapping[str, Any],
    ) -> Tree:
        """Write the files of parent and sites, make their keys and enrol every device and site.

        Args:
            folder: Made; must not hold an earlier tree.
            parent_run: Keys of the parent's ``[run]`` besides the site's.
            parent_keys: Keys of each site's ``[parent]`` besides its identity.
        """
        top = folder / "parent"
        top.mkdir(parents=True)
        page = f"127.0.0.1:{free_port()}"
        above = replace(chosen, devices=sites)
        table = aggregator_table("utility", above, urls[0], page)
        table["run"] |= dict(parent_run)
        (top / "aggregator.toml").write_text(toml(table), "utf-8")
        run(command("gridfed-aggregator", "init", str(top / "aggregator.toml")))
        parent = Prepared(top, top / "aggregator.toml", (), page)
        made = []
        lines = ["id,public,proof"]
        for number in range(sites):
            name = f"site-{number + 1}"
            below = prepare(
                folder / name,
                name,
                chosen,
                part_of(samples, number, chosen.devices),
                broker=urls[1],
                page=f"127.0.0.1:{free_port()}",
                choose_best=False,
            )

            def place(table: dict[str, Any], name: str = name) -> None:
                table["run"].pop("rounds")
                table["parent"] = {
                    "id": name,
                    "fleet": "utility",
                    "broker": {"url": urls[0], "reconnect_max": "2s"},
                    "root": str((top / "aggregator" / "root.pub").absolute()),
                    "reply": "2s",
                    **parent_keys,
                }

            edit(below.aggregator, place)
            run(command("gridfed-aggregator", "announce", str(below.aggregator)))
            joined = json.loads(
                run(command("gridfed-aggregator", "join", str(below.aggregator), "--json"))
            )
            lines.append(f"{joined['id']},{joined['public']},{joined['proof']}")
            made.append(below)
        (top / "sites.csv").write_text("\n".join(lines) + "\n", "utf-8")
        enrol = ("enrol", "--from-file", str(top / "sites.csv"), "--config", str(parent.aggregator))
        run(command("gridfed-aggregator", *enrol))
        return cls(folder, family, parent, tuple(made), samples, chosen)

    def files(self, name: str) -> Prepared:
        return self.parent if name == "parent" else self.sites[int(name.partition("-")[2]) - 1]

    def start(self, name: str) -> None:
        """Start the parent or a site, and wait until its page answers."""
        federation = Federation(self.files(name), 0, self.family)
        federation.start_aggregator()
        assert federation.aggregator is not None
        self.programs[name] = federation.aggregator

    def kill(self, name: str) -> None:
        """Kill an aggregator as a loss of power does."""
        program = self.programs.pop(name)
        program.signal(signal.SIGKILL)
        program.wait(30.0)
        self.family.members.remove(program)

    def status(self, name: str) -> dict[str, Any]:
        """Return the status document of an aggregator; empty while it does not answer."""
        found: dict[str, Any] = json.loads(fetched(self.files(name).page, "/status") or "{}")
        return found

    def version(self, name: str) -> int:
        """Return the version of an aggregator's model; -1 while it does not answer."""
        return int(self.status(name).get("run", {}).get("version", -1))

    def phase(self, name: str) -> str:
        """Return the phase of an aggregator's run; empty while it does not answer."""
        return str(self.status(name).get("run", {}).get("phase", ""))

    @contextmanager
    def devices(self, sites: Sequence[int] | None = None) -> Iterator[dict[int, Fleet]]:
        """Run the devices of some sites in this process, a fleet for each site."""
        connect, fleets = over_mqtt(), {}
        chosen = range(len(self.sites)) if sites is None else sites
        try:
            for number in chosen:
                fleet = fleets[number] = Fleet()
                own = part_of(self.samples, number, self.chosen.devices)
                populate(fleet, self.sites[number].devices, own, self.chosen, connect)
            yield fleets
        finally:
            for fleet in fleets.values():
                fleet.close()


def serve(fleets: Sequence[Fleet], done: Callable[[], bool], limit: float = LIMIT) -> None:
    """Serve devices until a condition holds, which is looked at every 0.2 seconds."""
    until, looked = time.monotonic() + limit, 0.0
    while True:
        for fleet in fleets:
            fleet.turn(0.002)
        now = time.monotonic()
        if now - looked >= 0.2:
            looked = now
            if done():
                return
            if now > until:
                raise TimeoutError(f"not within {limit:.0f} s")


def mae_of(fleet: Fleet, devices: Sequence[Device], samples: SampleSet, chosen: Scenario) -> float:
    """Return the mean absolute error of the devices' forecasts of the readings after the run."""
    found = errors(fleet, devices, {device.id for device in devices}, samples, chosen)
    return found.mae


def star(
    folder: Path, family: ProcessGroup, url: str, samples: SampleSet, chosen: Scenario
) -> dict[str, Any]:
    """Run all devices under one aggregator; return error and time."""
    count = len(samples.samples)
    whole = replace(chosen, devices=count)
    page = f"127.0.0.1:{free_port()}"
    made = prepare(folder, "star", whole, samples, broker=url, page=page, choose_best=False)
    federation = Federation(made, whole.run.rounds, family)
    federation.start_aggregator()
    with Fleet() as fleet:
        populate(fleet, made.devices, samples, whole, over_mqtt())
        began = time.monotonic()
        serve([fleet], lambda: all(client.is_done for client in fleet.clients))
        seconds = time.monotonic() - began
        mae = mae_of(fleet, made.devices, samples, whole)
    federation.stop()
    return {"arm": "star", "devices": count, "mae": mae, "seconds": seconds}


def grown(
    folder: Path,
    family: ProcessGroup,
    urls: tuple[str, str],
    samples: SampleSet,
    chosen: Scenario,
    *,
    sites: int,
    dying: int = 0,
    deadline: str = "60s",
) -> dict[str, Any]:
    """Run a tree, of which some sites are killed in the parent's first round; return error and time.

    A killed site stays dead, and its devices stay without an aggregator: the others' error counts.
    """
    tree = Tree.prepare(
        folder,
        family,
        urls=urls,
        samples=samples,
        chosen=chosen,
        sites=sites,
        parent_run={
            "quorum": sites,
            "min_updates": sites - dying,
            "deadline": deadline if dying else "1h",
            "weighting": "samples",
        },
        parent_keys={"max_count": chosen.devices},
    )
    names = [f"site-{number + 1}" for number in range(sites)]
    alive = sites - dying
    with tree.devices(range(alive)) as fleets:
        began = time.monotonic()
        for name in ("parent", *names[alive:]):
            tree.start(name)
        for name in names[alive:]:
            serve([], partial(_follows, tree, name))
            tree.kill(name)
        for name in names[:alive]:
            tree.start(name)
        everyone = [client for fleet in fleets.values() for client in fleet.clients]
        serve(list(fleets.values()), lambda: all(client.is_done for client in everyone))
        seconds = time.monotonic() - began
        found = [
            mae_of(
                fleet,
                tree.sites[number].devices,
                part_of(samples, number, chosen.devices),
                chosen,
            )
            for number, fleet in fleets.items()
        ]
    closed = tree.status("parent")["rounds"]
    family.stop(list(tree.programs.values()))
    return {
        "arm": f"tree, {dying} of {sites} sites dead" if dying else f"tree of {sites} sites",
        "devices": len(everyone),
        "mae": sum(found) / len(found),
        "seconds": seconds,
        "rounds": len(closed),
        "of_sites": sorted({int(one["updates"]) for one in closed}),
    }


def _follows(tree: Tree, name: str) -> bool:
    return bool(tree.status(name).get("parent", {}).get("state") == "following")


def main() -> None:
    """Run the arms and print a row for each, as text and as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sites", type=int, default=6)
    parser.add_argument("--devices", type=int, default=24, help="of each site")
    parser.add_argument("--dying", type=int, default=2, help="sites killed in the first round")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--deadline", default="60s", help="of the parent's rounds, with dead sites")
    parser.add_argument("--shared", help="prefixes of the shared layers, with commas; all")
    parser.add_argument("--bundle", default="load-mlp")
    parser.add_argument("--until", default="2018-06-01", help="end of the training")
    parser.add_argument("--evaluate-until", default="2018-07-01")
    parser.add_argument("--broker", default="mosquitto", help="kind of broker")
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    shared = tuple(args.shared.split(",")) if args.shared else None
    chosen = Scenario(
        "a site of a tree",
        samples="homes",
        devices=args.devices,
        bundle=args.bundle,
        run=RunSettings("fedavg", shared, args.rounds, SETTINGS, deadline="1h"),
        until=args.until,
        evaluation=(args.until, args.evaluate_until),
    )
    samples = fleet_of(sample_set("homes"), args.sites * args.devices)
    rows = []
    with tempfile.TemporaryDirectory() as made:
        folder = (args.folder or Path(made)).absolute()
        with ProcessGroup(folder / "logs") as family:
            urls = tuple(
                start_broker(family, folder / f"broker-{n}", args.broker) for n in range(2)
            )
            both = (urls[0], urls[1])
            rows.append(star(folder / "star", family, urls[0], samples, chosen))
            print(json.dumps(rows[-1]), flush=True)
            for dying in dict.fromkeys((0, args.dying)):
                where = folder / f"tree-{dying}"
                one = grown(
                    where,
                    family,
                    both,
                    samples,
                    chosen,
                    sites=args.sites,
                    dying=dying,
                    deadline=args.deadline,
                )
                rows.append(one)
                print(json.dumps(rows[-1]), flush=True)
    for row in rows:
        change = 100.0 * (row["mae"] / rows[0]["mae"] - 1.0)
        print(f"{row['arm']:<26} {row['mae']:.5f} {change:+.2f} % {row['seconds']:.0f} s")


if __name__ == "__main__":
    main()
