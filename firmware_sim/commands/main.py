"""The command ``gridfed-sim``: a fleet on this machine, from recorded readings."""

from __future__ import annotations

import os
import tempfile
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_sdk.app.cli import CommandLine, CommandResult, Subcommand
from edge_sdk.app.settings import SettingsError
from firmware_sim.commands.device_commands import CHARGER, METER, STATION
from firmware_sim.commands.options import arguments, pairs, value_of

if TYPE_CHECKING:
    from firmware_sim.samples import SampleSet
    from firmware_sim.scenario import Scenario

ABOUT = "Runs devices of the real SDK on this machine, from recorded readings."

EPILOGUE = """\
  gridfed-sim demo                            eight homes, three ways to learn, one page
  gridfed-sim fleet --devices 200 --in-process --rounds 20
  gridfed-sim fleet --byzantine 0.2 --attack alie --rule mean,trimmed_mean
  gridfed-sim meter --p1 pty:./ttyP1          one meter that a [[source]] can read
  gridfed-sim station ./pm --speed 900        one base station, a file a second
  gridfed-sim attacks                         the ways to lie
  gridfed-sim list                            what is shipped, and under which licence
"""


_APART = "--processes, and at most 16 devices or so"


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand; return its exit code."""
    return CommandLine("gridfed-sim", ABOUT, COMMANDS, EPILOGUE).main(argv)


def _demo(args: Namespace) -> CommandResult:
    from firmware_sim.commands.demo import Demo, clear, publish  # noqa: PLC0415 - numpy, and more
    from firmware_sim.fleet.processes import stoppable  # noqa: PLC0415 - as above
    from firmware_sim.reports.progress_display import display  # noqa: PLC0415 - as above
    from firmware_sim.scenario import scenario  # noqa: PLC0415 - as above

    clear(args.out)
    with stoppable(), display(is_quiet=args.json) as shown:
        demo = Demo(scenario(args.scenario), args.out, shown, args.limit, args.broker)
        outcome = demo.run()
    made = publish(outcome, args.out)
    files = "\n".join(f"{what}: {path}" for what, path in made.items())
    data = outcome.as_json() | {"files": {what: str(path) for what, path in made.items()}}
    return CommandResult(data, f"\n{outcome.text()}\n\n{files}")


def _demo_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("demo-run"), help="folder (demo-run)")
    parser.add_argument("--scenario", default="demo", help="a shipped name, or a TOML file (demo)")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds a run may take (300)")
    _broker_kind(parser, "--broker")


def _fleet(args: Namespace) -> CommandResult:
    from firmware_sim.commands.comparison_options import is_trial  # noqa: PLC0415 - as above
    from firmware_sim.commands.fleet import MOST_PROCESSES, FleetRun  # noqa: PLC0415 - as above
    from firmware_sim.fleet.power_failures import a_minute  # noqa: PLC0415 - as above
    from firmware_sim.fleet.processes import stoppable  # noqa: PLC0415 - as above
    from firmware_sim.reports.progress_display import display  # noqa: PLC0415 - numpy, and more

    chosen, samples = _chosen(args)
    if chosen.learning.shared == ():
        raise SettingsError(
            "--shared none: devices that share nothing have no rounds for a fleet to wait for",
            hint="gridfed-sim demo trains them alone, beside fleets that share",
        )
    if is_trial(chosen):
        return _trial(args, chosen, samples)
    inside = chosen.devices > MOST_PROCESSES if args.is_inside is None else args.is_inside
    outages = a_minute({k: value_of(v) for k, v in pairs(args.fault, "--fault").items()})
    if outages and inside:
        raise SettingsError("--fault brownouts: only a process can lose its power", hint=_APART)
    with tempfile.TemporaryDirectory(prefix="gridfed-sim-", dir=_memory()) as scratch:
        out = args.out or Path(scratch)
        with stoppable(), display(is_quiet=args.json) as shown:
            run = FleetRun(
                chosen,
                samples,
                out,
                shown,
                inside,
                broker=args.broker,
                kind=args.kind,
                aggregator=args.aggregator,
                limit=args.limit,
                seed=args.seed,
                outages=outages,
            )
            cost = run.run()
    data: dict[str, Any] = {
        "devices": cost.devices,
        "rounds": cost.rounds,
        "in_process": inside,
        "brownouts": run.struck,
        "seconds": cost.wall,
        "per_device_and_round": cost.each,
        "device_process": run.weighed,
        "refused": run.refused,
    }
    return CommandResult(data, cost.text())


def _trial(args: Namespace, chosen: Scenario, samples: SampleSet) -> CommandResult:
    """Run every scenario without and with every attack."""
    from firmware_sim.commands.trial import Trial, table, verdicts  # noqa: PLC0415 - as above
    from firmware_sim.fleet.processes import stoppable  # noqa: PLC0415 - as above
    from firmware_sim.reports.progress_display import display  # noqa: PLC0415 - numpy, and more

    if args.is_inside is False or args.aggregator:
        raise SettingsError(
            "--processes, --aggregator: liars share one process, and every run has its aggregator",
            hint="leave them out",
        )
    with tempfile.TemporaryDirectory(prefix="gridfed-sim-", dir=_memory()) as scratch:
        out = args.out or Path(scratch)
        with stoppable(), display(is_quiet=args.json) as shown:
            trial = Trial(
                chosen,
                samples,
                out,
                shown,
                broker=args.broker,
                kind=args.kind,
                limit=args.limit,
                seed=args.seed,
            )
            rows = trial.run()
    data = {
        "devices": chosen.devices,
        "judged": list(trial.judged),
        "unit": samples.unit,
        "runs": [row.as_json() for row in rows],
        "verdicts": verdicts(rows),
    }
    return CommandResult(data, table(rows, samples.unit))


def _attacks(_: Namespace) -> CommandResult:
    from firmware_sim.attacks import ATTACKS, KINDS, options_of  # noqa: PLC0415 - numpy

    lines = []
    for kind, where in KINDS.items():
        lines.append(f"on {where}:")
        for row in (row for row in ATTACKS.values() if row.kind == kind):
            sees = " (sees the honest answers)" if row.is_omniscient else ""
            lines.append(f"  {row.name:14} {row.says}{sees}{options_of(row)}")
    data = {
        name: {
            "kind": row.kind,
            "definition": row.says,
            "options": dict(row.options),
            "target": row.space,
            "omniscient": row.is_omniscient,
        }
        for name, row in ATTACKS.items()
    }
    return CommandResult(data, "\n".join(lines))


def _chosen(args: Namespace) -> tuple[Scenario, SampleSet]:
    """Return the scenario with the options applied."""
    from firmware_sim.commands.comparison_options import with_trial  # noqa: PLC0415 - as above
    from firmware_sim.samples import sample_set  # noqa: PLC0415 - numpy
    from firmware_sim.scenario import (  # noqa: PLC0415 - as above
        PATIENT,
        SUITED,
        Noise,
        Scenario,
        scenario,
    )

    base = scenario(args.scenario) if args.scenario else Scenario("a fleet", learning=PATIENT)
    if not args.scenario:
        base = replace(base, bundle=SUITED.get(args.like or base.samples, base.bundle))
    options = {"samples": args.like, "devices": args.devices, "bundle": args.bundle}
    learned = {"quorum": args.quorum, "rounds": args.rounds, "shared": args.shared}
    settings = {"steps": args.steps, "rate": args.rate}
    given = {key: value for key, value in settings.items() if value is not None}
    given |= {key: value_of(text) for key, text in pairs(args.setting, "--setting").items()}
    learning = replace(
        base.learning,
        settings={**base.learning.settings, **given},
        **{key: value for key, value in learned.items() if value is not None},
    )
    chosen = replace(
        base,
        learning=learning,
        **{key: value for key, value in options.items() if value is not None},
    )
    if args.privacy:
        chosen = replace(chosen, privacy=Noise.load(args.privacy).privacy)
    samples = sample_set(chosen.samples)
    samples = samples.of_folder(args.data) if args.data else samples
    chosen = chosen if args.scenario else chosen.first_days(args.days, samples, args.judge_days)
    return with_trial(chosen, args), samples


def _memory() -> str | None:
    """Return a folder in memory for many devices' states, to spare the disk their syncs."""
    shared = Path("/dev/shm")  # noqa: S108 - a private folder is made below it
    return str(shared) if shared.is_dir() and os.access(shared, os.W_OK) else None


def _layers(text: str) -> tuple[str, ...]:
    """Parse ``--shared``: prefixes separated by commas; ``all`` and ``none`` are keywords.

    >>> _layers("lstm.,head.0"), _layers("all"), _layers("none")
    (('lstm.', 'head.0'), ('',), ())
    """
    words = {"all": ("",), "none": ()}
    return words.get(text, tuple(part for part in text.split(",") if part))


def _fleet_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--devices", type=int, metavar="N", help="how many (8)")
    add("--rounds", type=int, metavar="N", help="how often the model moves (20)")
    add("--method", metavar="NAMES", help="how to learn, with commas between several (fedavg)")
    words = "devices whose answers move the model (all; half where nobody is waited for)"
    add("--quorum", type=int, metavar="N", help=words)
    add("--setting", action="append", default=[], metavar="K=V", help="of the methods")
    add("--shared", type=_layers, metavar="LAYERS", help="prefixes with commas, all, or none")
    add("--steps", type=int, help="local steps in a round (the bundle's)")
    add("--rate", type=float, help="learning rate (the bundle's)")
    add("--bundle", help="a shipped name, or a path (one that suits the set)")
    add("--days", type=int, default=28, help="history of a device, from its first reading (28)")
    add("--judge-days", type=int, default=7, metavar="N", help="that a trial judges on, after (7)")
    add("--seed", type=int, default=0, help="of what the simulator draws (0)")
    add("--scenario", default="", help="start from this scenario: a name, or a TOML file")
    words = "the shipped set to use, or that --data resembles (homes)"
    add("--like", "--samples", metavar="SET", help=words)
    add("--data", type=Path, metavar="FOLDER", help="CSV files of your own, one a device")
    words = "brownouts=N: so often a minute, kill -9 of some device's process, and a start anew"
    add("--fault", action="append", default=[], metavar="K=V", help=words)
    words = "a TOML file with the [privacy] of every device (no mechanism)"
    add("--privacy", type=Path, metavar="FILE", help=words)
    where = parser.add_mutually_exclusive_group()
    inside: dict[str, Any] = {"action": "store_const", "dest": "is_inside"}
    where.add_argument("--processes", const=False, help="a process a device (up to 16)", **inside)
    where.add_argument("--in-process", const=True, help="all in this process (above)", **inside)
    add("--broker", default="", metavar="URL", help="a running broker; left out: start one")
    _broker_kind(parser, "--kind")
    add("--aggregator", type=Path, metavar="CONFIG", help="join this aggregator of yours")
    add("--limit", type=float, default=600.0, help="seconds the run may take (600)")
    add("--out", type=Path, metavar="FOLDER", help="keep every file (else in memory, then gone)")
    arguments(parser)


def _broker_kind(parser: ArgumentParser, option: str) -> None:
    kinds = ("auto", "mosquitto", "embedded")
    parser.add_argument(option, choices=kinds, default="auto", help="which broker to start (auto)")


def _list(_: Namespace) -> CommandResult:
    from firmware_sim.samples import sample_sets  # noqa: PLC0415 - numpy
    from firmware_sim.scenario import names, scenario  # noqa: PLC0415 - as above

    sets = sample_sets()
    scenarios = {name: scenario(name).title for name in names()}
    lines = ["samples:"]
    for name, row in sets.items():
        lines.append(f"  {name:10} {row.title} ({row.kind}; {row.licence})")
        lines.append(f"  {'':10} {', '.join(sample.device for sample in row.samples)}")
    lines += ["scenarios:", *(f"  {name:10} {title}" for name, title in scenarios.items())]
    kept = ("title", "kind", "licence", "attribution", "step_seconds", "target", "unit")
    data = {
        name: {key: getattr(row, key) for key in kept}
        | {"devices": [sample.device for sample in row.samples]}
        for name, row in sets.items()
    }
    return CommandResult({"samples": data, "scenarios": scenarios}, "\n".join(lines))


COMMANDS = {
    "demo": Subcommand(
        "Eight homes learn three ways; a table and a page say what it was worth.",
        _demo,
        _demo_arguments,
        "Starts a broker, an aggregator and eight devices, each a process of its own, and stops\n"
        "all of them. Needs no network and no torch.",
    ),
    "fleet": Subcommand(
        "Run N devices and print what a device and a round cost.",
        _fleet,
        _fleet_arguments,
        "With --attack, or with several methods or rules, every way to learn is run without and\n"
        "with every attack, and a table says what became of the devices that never lie.",
    ),
    "meter": METER,
    "charger": CHARGER,
    "station": STATION,
    "attacks": Subcommand("List the ways to lie, with their definitions and options.", _attacks),
    "list": Subcommand("List the shipped readings and scenarios.", _list),
}
