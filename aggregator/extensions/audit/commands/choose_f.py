"""Apply recorded rounds again for every f, score the models on held-out readings, and name an f.

The database is opened read-only, and the daemon may run. Every round begins with the model that the
devices answered. Named is the least f whose error is within --within of the least error: so many devices
did harm on these readings.

Readings are CSV files, one for each device that you trust: a time (ISO 8601 or Unix seconds), then a
column for each stream of the bundle. Personal layers are trained on the first three quarters of a file.

  gridfed-aggregator choose-f aggregator.toml --readings trusted.csv
  gridfed-aggregator choose-f aggregator.toml --readings a.csv b.csv --rounds 40:60 --rule nnm+krum
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aggregator import config as configs
from aggregator.commands.arguments import CommandError, add_config, require_database
from aggregator.extensions.audit.commands import replay
from aggregator.extensions.audit.fault_count import FaultCount, fault_counts, named
from aggregator.extensions.audit.held_out import score_of
from aggregator.extensions.audit.replay import kept_rounds
from aggregator.rules import UnknownRuleError, bind
from aggregator.store.opener import open_store
from aggregator.store.state_codec import LeafError
from edge_sdk.app.cli import CommandResult

ROUNDS = 20  # newest rounds that are replayed unless --rounds names others
RULE = "trimmed_mean"

LIMITS = (
    "An attack that does no harm on these readings is not counted (ALIE does little).",
    "An honest device whose readings differ much from these can be counted.",
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the configuration, the readings, the rounds and the rule."""
    add_config(parser)
    parser.add_argument(
        "--readings", required=True, nargs="+", type=Path, metavar="CSV", help="held-out readings"
    )
    parser.add_argument(
        "--rounds", metavar="I:J", help=f"first and last round (the newest {ROUNDS})"
    )
    parser.add_argument("--run", type=int, metavar="N", help="number of the run (the newest)")
    parser.add_argument(
        "--rule", default=RULE, metavar="NAME", help=f"a rule that depends on f ({RULE})"
    )
    parser.add_argument(
        "--within", type=float, default=0.01, metavar="SHARE", help="accepted excess (0.01)"
    )


def run(args: Namespace) -> CommandResult:
    """Replay rounds of a run for every f, and name one."""
    config = require_database(configs.AggregatorConfig.load(args.config))
    with open_store(config.database, read_only=True) as store:
        view, begun = replay.chosen_run(config, store, args.run)
        bound = configs.bind(view)
        oldest, newest = kept_rounds(store, begun.run)
        first = max(oldest, newest - ROUNDS + 1)
        rounds = replay.parse_rounds(args.rounds) if args.rounds else (first, newest)
        halves = {}
        for f in range(most(view, args.rule, bound.rounds.enough) + 1):
            rule = replay.changed_rule(view, args.rule, f, [])
            halves[f] = configs.bind(replay.with_rule(view, rule, view.run.min_updates)).half
        try:
            found = fault_counts(
                store,
                begun.run,
                rounds,
                halves,
                score_of(bound, args.readings),
                recorded=bound.half,
                initial=bound.spec.shared(bound.bundle.initial),
            )
        except LeafError as error:
            raise CommandError(
                f"choose-f: the state of run {begun.run} is not one of this configuration: {error}",
                hint="give the configuration under which the run was begun",
            ) from error
    chosen = named(found, args.within)
    data: dict[str, Any] = {
        "run": begun.run,
        "rounds": list(rounds),
        "rule": args.rule,
        "f": chosen.f,
        "configured": int(view.run.rule.get("f", 0)),
        "curve": [asdict(one) for one in found],
        "limits": list(LIMITS),
    }
    return CommandResult(data, "\n".join([*_lines(data, found, args.within), *LIMITS]))


def most(config: configs.AggregatorConfig, rule: str, rows: int) -> int:
    """Return the largest f that a rule accepts, at most half of the rows.

    Raises:
        CommandError: No such rule, or one that needs more parameters.
    """
    table = replay.changed_rule(config, rule, 1, [])
    table.pop("scope", None)
    try:
        bound = bind(table.pop("name"), **table)
    except UnknownRuleError as error:
        raise CommandError(f"--rule: {error.why}") from error
    return min(bound.tolerated(rows), rows // 2)


def _lines(data: dict[str, Any], found: list[FaultCount], within: float) -> list[str]:
    first, last = data["rounds"]
    title = f"run {data['run']}, rounds {first} to {last}, {data['rule']}"
    lines = [f"{title}: error over the range of the readings"]
    lines += [
        f"  f {one.f:3}  {one.error:.6g}{'  <' if one.f == data['f'] else ''}" for one in found
    ]
    lines.append(
        f"f = {data['f']}: the least within {within:.3g} of the least error; the run has "
        f"f = {data['configured']}"
    )
    return lines
