"""Apply recorded rounds again under another rule or without some devices, and compare.

The database is opened read-only, and the daemon may run. The result of every single round, begun
with the recorded model, is exact. The chained result is exact for the first round only: later on,
the devices would have answered another model.

  gridfed-aggregator replay aggregator.toml --rounds 12:15 --rule trimmed_mean --f 2
  gridfed-aggregator replay aggregator.toml --rounds 12 --rule nnm+krum --f 2 --out replay.svg
  gridfed-aggregator replay aggregator.toml --rounds 12:15 --without meter-3,meter-9 --json
"""

from __future__ import annotations

import tomllib
from argparse import ArgumentParser, Namespace
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from aggregator import config as configs
from aggregator.commands.arguments import CommandError, add_config, require_database
from aggregator.extensions.audit.replay import ReplayedRound, ReplayScenario, RoundResult, replay
from aggregator.methods import METHODS
from aggregator.operations.charts import line_chart
from aggregator.store.opener import open_store
from aggregator.store.state_codec import LeafError
from aggregator.store.store import Store
from aggregator.store.types import RunRecord
from edge_sdk.app.cli import CommandResult

# facts that a replay shows, and facts that it cannot show
LIMITS = (
    "Every single round is exact: it begins with the recorded model, which the devices answered.",
    "The chained result is exact for the first round; later rounds apply recorded updates to another model.",
    "Losses are those that devices reported for the recorded model; the aggregator has no readings.",
    "Only journalled updates are replayed; a refused update is not in the journal.",
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the configuration, the rounds, the changes and the output."""
    add_config(parser)
    parser.add_argument(
        "--rounds", required=True, metavar="I:J", help="first and last round, or one round"
    )
    parser.add_argument("--run", type=int, metavar="N", help="number of the run (the newest)")
    parser.add_argument(
        "--rule", metavar="NAME", help="another rule; nnm+krum applies nnm before krum"
    )
    parser.add_argument("--f", type=int, metavar="N", help="Byzantine updates that it tolerates")
    words = "a further parameter of the rule, as in the configuration; may be repeated"
    parser.add_argument("--parameter", action="append", default=[], metavar="KEY=VALUE", help=words)
    parser.add_argument(
        "--min-updates", type=int, metavar="N", help="updates that suffice at the deadline"
    )
    parser.add_argument(
        "--without", default="", metavar="ID,…", help="devices whose updates are left out"
    )
    parser.add_argument("--out", metavar="SVG", help="write a picture of the distances")


def run(args: Namespace) -> CommandResult:
    """Replay rounds of a run and compare them with the record."""
    config = require_database(configs.AggregatorConfig.load(args.config))
    first, last = parse_rounds(args.rounds)
    without = sorted({one.strip() for one in args.without.split(",") if one.strip()})
    with open_store(config.database, read_only=True) as store:
        unknown = sorted(set(without) - {client.id for client in store.devices.all()})
        if unknown:
            raise CommandError(
                f"--without: {unknown[0]!r} is not enrolled", hint="gridfed-aggregator list"
            )
        view, begun = chosen_run(config, store, args.run)
        rule = changed_rule(view, args.rule, args.f, args.parameter)
        least = view.run.min_updates if args.min_updates is None else args.min_updates
        bound, other = configs.bind(view), configs.bind(with_rule(view, rule, least))
        scenario = ReplayScenario(first, last, frozenset(without), rule != dict(view.run.rule))
        try:
            rounds = replay(
                store,
                begun.run,
                scenario,
                recorded=bound.half,
                other=other.half,
                initial=bound.spec.shared(bound.bundle.initial),
            )
        except LeafError as error:
            raise CommandError(
                f"replay: the state of run {begun.run} is not one of this configuration: {error}",
                hint="give the configuration under which the run was begun",
            ) from error
    data: dict[str, Any] = {
        "run": begun.run,
        "rule": {"recorded": dict(view.run.rule), "replayed": rule},
        "without": without,
        "rounds": [asdict(one) for one in rounds],
        "limits": list(LIMITS),
    }
    text = "\n".join([_title(data), *map(_lines, rounds), *LIMITS])
    if args.out is not None:
        Path(args.out).write_text(picture(rounds), encoding="utf-8")
        data["out"], text = args.out, f"{text}\npicture: {args.out}"
    return CommandResult(data, text)


def parse_rounds(text: str) -> tuple[int, int]:
    """Return the first and the last round of ``I:J`` or ``I``.

    Raises:
        CommandError: The text has another form.

    >>> parse_rounds("12:15"), parse_rounds("7")
    ((12, 15), (7, 7))
    """
    first, _, last = text.partition(":")
    try:
        found = int(first), int(last or first)
    except ValueError:
        found = 0, 0
    if not 1 <= found[0] <= found[1]:
        raise CommandError(f"--rounds: expected I:J with 1 <= I <= J, got {text!r}")
    return found


def chosen_run(
    config: configs.AggregatorConfig, store: Store, number: int | None
) -> tuple[configs.AggregatorConfig, RunRecord]:
    """Return the configuration and the record of a run; of the first configured one if None.

    Raises:
        CommandError: No such run, or an earlier one, whose configuration is not this file's.
    """
    found = [(view, store.runs.latest(view.run.name)) for view in config.views()]
    begun = [(view, one) for view, one in found if one is not None]
    for view, one in begun:
        if number in (None, one.run):
            return view, one
    known = ", ".join(str(one.run) for _, one in begun) or "none"
    raise CommandError(f"--run: no run {number} under this configuration; it has: {known}")


def changed_rule(
    config: configs.AggregatorConfig, name: str | None, f: int | None, parameters: list[str]
) -> dict[str, Any]:
    """Return the rule's table with changes; raise CommandError for a method without a rule, or a wrong parameter."""
    table = dict(config.run.rule)
    if name is None and f is None and not parameters:
        return table
    if METHODS[config.run.method].own:
        raise CommandError(
            f"--rule: method {config.run.method!r} combines updates without a rule; "
            "only --without and --min-updates change its rounds"
        )
    if name is not None:
        *before, last = name.split("+")
        kept: dict[str, Any] = {key: table[key] for key in ("f", "scope") if key in table}
        table = {"name": last, **kept, **({"preaggregation": before} if before else {})}
    if f is not None:
        table["f"] = f
    for one in parameters:
        key, _, value = one.partition("=")
        try:
            table[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError as error:
            raise CommandError(f"--parameter: expected KEY=VALUE, got {one!r}") from error
    return table


def with_rule(
    config: configs.AggregatorConfig, rule: dict[str, Any], least: int | None
) -> configs.AggregatorConfig:
    """Return the configuration with another rule and ``run.min_updates``, and without an end."""
    section = replace(config.run, rule=rule, min_updates=least, rounds=None)
    changed = replace(config, run=section).read_from(config.file)
    return changed.read_from(config.file)


def _title(data: dict[str, Any]) -> str:
    rule, without = data["rule"], ", ".join(data["without"])
    title = f"run {data['run']}: {rule['recorded']} as recorded, {rule['replayed']} in the replay"
    return f"{title}, without {without}" if without else title


def _lines(one: ReplayedRound) -> str:
    rows = (
        ("recorded", one.recorded, None),
        ("single", one.single, one.single_distance),
        ("chained", one.chained, one.chained_distance),
    )
    return "\n".join([f"round {one.round}", *(_line(*row) for row in rows)])


def _line(name: str, result: RoundResult, distance: float | None) -> str:
    parts = [f"  {name:9} step {result.step:.6g}"]
    parts += [f"distance {distance:.6g}"] if distance is not None else []
    parts += [f"loss {result.loss:.6g}"] if result.loss is not None else []
    parts += [f"used {len(result.used)}"]
    parts += [f"excluded {', '.join(sorted(result.excluded))}"] if result.excluded else []
    return ", ".join(parts if result.moved else [*parts, f"abandoned: {result.why}"])


def picture(rounds: list[ReplayedRound]) -> str:
    """Return the distances from the recorded model and the recorded steps, by round, as SVG."""
    lines = {
        "recorded step": [(one.round, one.recorded.step) for one in rounds],
        "distance, single round": [(one.round, one.single_distance) for one in rounds],
        "distance, chained": [(one.round, one.chained_distance) for one in rounds],
    }
    return line_chart("Distance of the replayed from the recorded model", "length", lines)
