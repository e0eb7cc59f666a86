"""Recompute every round from the journal, and compare the results bit for bit.

The newest run is recomputed, or that of --run. An earlier run needs the configuration under which it
was begun; the database does not contain the bundle.

With --devices, link traces of devices (*.jsonl, as the simulator writes them) are compared with
the database: no receipted update may be lost, and none applied twice.

  gridfed-aggregator audit aggregator.toml
  gridfed-aggregator audit aggregator.toml --run 1
  gridfed-aggregator audit aggregator.toml --devices traces
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from aggregator import config as configs
from aggregator.audit.delivery_audit import Books, DeliveryVerdict, judge
from aggregator.audit.recompute import Audit, recompute
from aggregator.commands.arguments import add_config
from aggregator.commands.errors import CommandError, require_database
from aggregator.store.opener import open_store
from aggregator.store.state_codec import LeafError
from aggregator.store.types import Horizon, Store
from edge_sdk.app.cli import RUNTIME, CommandResult
from edge_sdk.wire.errors import Reason
from edge_sdk.wire.link import link_trace


def add_arguments(parser: ArgumentParser) -> None:
    """Add the configuration and the folder of traces."""
    add_config(parser)
    parser.add_argument(
        "--run", type=int, metavar="N", help="number of the run (the newest of each name)"
    )
    parser.add_argument(
        "--devices", metavar="FOLDER", help="also compare link traces (*.jsonl) with the database"
    )


def run(args: Namespace) -> CommandResult:
    """Check a configuration's database, and compare it with link traces if a folder is given.

    Raises:
        Failure: The configuration, its database or the folder cannot be read.
    """
    config = require_database(configs.AggregatorConfig.load(args.config))
    results = [_audited(args, view) for view in _views(args, config)]
    if len(results) == 1:
        return results[0]
    data = {"audits": [one.data for one in results], "sound": not any(r.code for r in results)}
    code = max(result.code for result in results)
    return CommandResult(data, "\n".join(result.text for result in results), code)


def _views(args: Namespace, config: configs.AggregatorConfig) -> list[configs.AggregatorConfig]:
    """Return the configurations to audit under: of every run, or of the run that is asked for."""
    views = list(config.views())
    if args.run is None or len(views) == 1:
        return views
    with open_store(config.database, read_only=True) as store:
        begun = [store.run(view.run.name) for view in views]
    its = [v for v, run in zip(views, begun, strict=True) if run and run.run == args.run]
    return its or views[:1]


def _audited(args: Namespace, config: configs.AggregatorConfig) -> CommandResult:
    bound = configs.bind(config)
    with open_store(config.database, read_only=True) as store:
        horizon, runs = store.horizon(), sorted(store.runs())
        begun = store.run(config.run.name)
        number = args.run if args.run is not None else (begun.run if begun else 0)
        if number not in runs and args.run is not None:
            listed = ", ".join(map(str, runs)) or "none"
            raise CommandError(f"audit: --run: no run {number}; the database has: {listed}")
        try:
            found = recompute(store, bound.half, bound.spec.shared(bound.bundle.initial), number)
        except LeafError as error:
            raise CommandError(
                f"audit: the state of run {number} is not one of this configuration: {error}",
                hint="give the configuration under which the run was begun",
            ) from error
        deliveries = judge(lines(Path(args.devices)), books(store)) if args.devices else None
    known = {"events since": horizon.first, "events deleted": horizon.updates}
    text = (
        f"run {found.run}: {found.events} events, {found.rounds} rounds, {found.moved} of them "
        f"moved the model, {sum(found.updates.values())} updates used"
    )
    others = [run for run in runs if run != number]
    if others and args.run is None and config.run.name:
        text = f"{config.run.name}: {text}"
    elif others:
        text += f"\nnot recomputed: runs {', '.join(map(str, others))} (--run N)"
    if found.faults and runs and number != runs[-1]:
        text += f"\nwas run {number} begun under this configuration? another rule or setting differs too"
    report = [text, *since(found, horizon), *unlearned(found), *found.faults]
    report += ["every round was recomputed to the same bits"] if found.is_sound else []
    data = {**asdict(found), "updates": dict(found.updates), "sound": found.is_sound}
    data |= {"horizon": known, "runs": runs}
    if deliveries is not None:
        report += [*_summary(deliveries), *deliveries.faults]
        data |= {"history": asdict(deliveries), "sound": found.is_sound and deliveries.is_sound}
    return CommandResult(data, "\n".join(report), 0 if data["sound"] else RUNTIME)


def unlearned(found: Audit) -> list[str]:
    """Return a line for every removal of a device's contribution."""
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


def books(store: Store) -> Books:
    """Read the records of every number from a database."""
    return Books(
        store.settled(),
        list(store.applied()),
        [version for run in store.runs() for version in store.versions(run)],
        {client.id: store.ledger(client.id).spent for client in store.clients()},
        store.horizon(),
    )


def lines(folder: Path) -> Iterator[link_trace.Line]:
    """Read link traces: every ``*.jsonl`` of a folder.

    Raises:
        CommandError: The folder contains none.
    """
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise CommandError(
            f"{folder} contains no link trace (*.jsonl)",
            hint="the simulator writes them; a real device does not",
        )
    for path in files:
        with path.open(encoding="utf-8") as text:
            yield from link_trace.read(text)


def _summary(deliveries: DeliveryVerdict) -> list[str]:
    refused = ", ".join(f"{Reason(code).name} {n}" for code, n in deliveries.refused.items())
    counts = (
        f"{deliveries.devices} devices sent {deliveries.sent} updates, repeated {deliveries.repeats} times; "
        f"{deliveries.receipted} were receipted as accepted, {deliveries.applied} are in the journal; "
        f"refused: {refused or 'none'}; {deliveries.unsettled} without a receipt"
    )
    if deliveries.pruned:
        counts += (
            f"; {deliveries.pruned} receipted ones are older than the journal and not compared"
        )
    good = "no receipted update was lost, and none was applied twice"
    return [counts, *([good] if deliveries.is_sound else [])]
