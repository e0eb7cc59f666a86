"""Recompute every round from the journal, and compare the results bit for bit.

The newest run of each name is recomputed, or that of --run. With --all every run of the database is
recomputed that has the present definition; the others are listed. An earlier run needs the
configuration under which it was begun; the database does not contain the bundle.

What extensions keep, such as opened sums, is computed again beside the runs.

  gridfed-aggregator audit aggregator.toml
  gridfed-aggregator audit aggregator.toml --run 1
  gridfed-aggregator audit aggregator.toml --all
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict, replace

from aggregator import config as configs
from aggregator.commands.arguments import CommandError, add_config, require_database
from aggregator.extensions.audit.recompute import Audit, recompute
from aggregator.operations.run_setup import record_of
from aggregator.store.opener import open_store
from aggregator.store.state_codec import LeafError
from aggregator.store.types import Horizon
from edge_sdk.app.cli import CommandResult
from edge_sdk.errors import OK, RUNTIME


def add_arguments(parser: ArgumentParser) -> None:
    """Add the configuration and the runs."""
    add_config(parser)
    parser.add_argument(
        "--run", type=int, metavar="N", help="number of the run (the newest of each name)"
    )
    parser.add_argument("--all", action="store_true", help="recompute every run of the database")


def run(args: Namespace) -> CommandResult:
    """Recompute the rounds of a configuration's database."""
    config = require_database(configs.AggregatorConfig.load(args.config))
    if args.all:
        return _with_extensions(config, _audited_all(args, config))
    results = [_audited(args, view, args.run) for view in _views(args, config)]
    return _with_extensions(config, results[0] if len(results) == 1 else _joined(results))


def _with_extensions(config: configs.AggregatorConfig, found: CommandResult) -> CommandResult:
    """Add the recomputed results of extensions, each under its name."""
    for entry in config.index.having("audited"):
        if entry.is_configured(config.tables):
            one = entry.load("audited")(config)
            sound = found.data["sound"] and not one.code
            data = {**found.data, entry.name: one.data, "sound": sound}
            found = CommandResult(data, f"{found.text}\n{one.text}", max(found.code, one.code))
    return found


def _joined(results: list[CommandResult], notes: Sequence[str] = ()) -> CommandResult:
    data = {"audits": [one.data for one in results], "sound": not any(r.code for r in results)}
    code = max((result.code for result in results), default=OK)
    return CommandResult(data, "\n".join([*(result.text for result in results), *notes]), code)


def _audited_all(args: Namespace, config: configs.AggregatorConfig) -> CommandResult:
    results, notes = [], []
    with open_store(config.database, read_only=True) as store:
        records = store.runs.records()
    views = {view.run.name: view for view in config.views()}
    for record in records:
        view = views.get(record.name)
        if view is not None and record_of(configs.bind(view), record.run) == record:
            results.append(_audited(args, view, record.run))
        else:
            notes.append(f"run {record.run}: not recomputed: begun under another configuration")
    joined = _joined(results, notes)
    left = sorted({one.run for one in records} - {one.data["run"] for one in results})
    return replace(joined, data={**joined.data, "not recomputed": left})


def _views(args: Namespace, config: configs.AggregatorConfig) -> list[configs.AggregatorConfig]:
    views = list(config.views())
    if args.run is None or len(views) == 1:
        return views
    with open_store(config.database, read_only=True) as store:
        names = {record.run: record.name for record in store.runs.records()}
    its = [view for view in views if names.get(args.run) == view.run.name]
    return its or views[:1]


def _audited(
    args: Namespace, config: configs.AggregatorConfig, wanted: int | None
) -> CommandResult:
    bound = configs.bind(config)
    with open_store(config.database, read_only=True) as store:
        horizon, runs = store.retention.horizon(), sorted(store.runs.numbers())
        begun = store.runs.latest(config.run.name)
        number = wanted if wanted is not None else (begun.run if begun else 0)
        if number not in runs and wanted is not None:
            listed = ", ".join(map(str, runs)) or "none"
            raise CommandError(f"audit: --run: no run {number}; the database has: {listed}")
        try:
            found = recompute(store, bound.half, bound.spec.shared(bound.bundle.initial), number)
        except LeafError as error:
            raise CommandError(
                f"audit: the state of run {number} is not one of this configuration: {error}",
                hint="give the configuration under which the run was begun",
            ) from error
    known = {"events since": horizon.first, "events deleted": horizon.updates}
    text = (
        f"run {found.run}: {found.events} events, {found.rounds} rounds, {found.moved} of them "
        f"moved the model, {sum(found.updates.values())} updates used"
    )
    others = [run for run in runs if run != number]
    if others and args.all:
        text = f"{config.run.name}: {text}" if config.run.name else text
    elif others and args.run is None and config.run.name:
        text = f"{config.run.name}: {text}"
    elif others:
        text += f"\nnot recomputed: runs {', '.join(map(str, others))} (--run N)"
    if found.faults and runs and number != runs[-1]:
        text += f"\nwas run {number} begun under this configuration? another rule or setting differs too"
    report = [text, *since(found, horizon), *unlearned(found), *found.faults]
    report += ["every round was recomputed to the same bits"] if found.is_sound else []
    data = {**asdict(found), "updates": dict(found.updates), "sound": found.is_sound}
    data |= {"horizon": known, "runs": runs}
    return CommandResult(data, "\n".join(report), 0 if data["sound"] else RUNTIME)


def unlearned(found: Audit) -> list[str]:
    return [f"event {position}: {device} was unlearned" for position, device in found.unlearned]


def since(found: Audit, horizon: Horizon) -> list[str]:
    """Return notes on where the check starts, if older vectors or events were deleted."""
    notes = []
    if found.since:
        notes.append(
            f"rounds up to {found.since} are not recomputed: their vectors were dropped "
            f"(retention.vector_bytes, retention.rounds)"
        )
    if horizon.updates:
        notes.append(
            f"{horizon.updates} updates of {len(horizon.pruned)} devices are not listed: their "
            f"events before position {horizon.first} were deleted (retention.journal_bytes)"
        )
    return notes
