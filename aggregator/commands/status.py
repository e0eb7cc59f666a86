"""Show the state of the run: from the daemon, or from the database if it is not running.

gridfed-aggregator status aggregator.toml
gridfed-aggregator status aggregator.toml --json | jq .rounds
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from argparse import Namespace
from collections.abc import Mapping
from typing import Any, NamedTuple

from aggregator.commands.arguments import add_config, require_database
from aggregator.config import AggregatorConfig, config_schedule
from aggregator.ingress.dead_letters import DeadLetters
from aggregator.operations.operator_alerts import offline
from aggregator.operations.status_document import SCHEMA, round_line
from aggregator.store.opener import open_store
from aggregator.store.store import Store
from aggregator.store.types import Version
from edge_sdk.app.cli import CommandResult
from edge_sdk.app.clock import SystemClock
from edge_sdk.app.settings import SettingsError
from edge_sdk.errors import RUNTIME

add_arguments = add_config

TIMEOUT = 5.0  # s, of the status page
SHOWN = 8  # devices listed per cluster; the JSON has them all


def run(args: Namespace) -> CommandResult:
    """Return the status from the daemon's page; without an answer, read the store."""
    config = AggregatorConfig.load(args.config)
    document = read_page(config) or _from_store(config)
    return CommandResult(document, _prose(document))


def read_page(config: AggregatorConfig) -> dict[str, Any] | None:
    """Return the status document of the running daemon; None without an answer."""
    if config.http.listen == "off":
        return None
    try:
        with urllib.request.urlopen(f"http://{config.http.listen}/status", timeout=TIMEOUT) as page:
            document: dict[str, Any] = json.load(page)
    except (urllib.error.URLError, OSError, ValueError):
        return None
    is_ours = document.get("schema") == SCHEMA and document.get("fleet") == config.fleet
    return {"running": True, **document} if is_ours else None


def _from_store(config: AggregatorConfig) -> dict[str, Any]:
    """Return the status from the store, of a daemon that is not running."""
    require_database(config)
    with open_store(config.database, read_only=True) as store:
        runs = [_stored_run(view, store) for view in config.views()]
        clients = store.devices.all()
        kept = {"bytes": store.size(), **store.retention.used(), "audit after": runs[0].after}
    first = runs[0]
    closed = first.closed
    moved = [version.report for version in closed if version.moved]
    clusters = moved[-1].get("clusters", {}) if moved else {}
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "running": False,
        "ready": False,
        "fleet": config.fleet,
        "run": first.status,
        "devices": {"enrolled": sum(client.state != "revoked" for client in clients)},
        "rounds": [round_line(version) for version in reversed(closed)],
    }
    if first.schedule:
        document["schedule"] = first.schedule
    if len(runs) > 1:
        document["runs"] = [one.status | {"schedule": one.schedule} for one in runs]
    alarms = {client.id: client.why for client in clients if client.state == "quarantined"}
    optional: dict[str, Any] = {"clusters": clusters, "alarms": alarms}
    optional["store"] = kept
    optional["certificates"] = offline(config)
    for entry in config.index.configured(config.tables):
        if (saved := entry.load("status")) is not None:
            optional |= saved(config)
    letters = DeadLetters(config.state / "dead-letters")
    optional |= {"halted": letters.halted, "dead_letters": letters.count}
    optional["credit"] = next((v.report.get("credit", {}) for v in reversed(closed) if v.moved), {})
    return document | {name: value for name, value in optional.items() if value}


class StoredRun(NamedTuple):
    """State of one run in the store: its status, schedule, newest rounds, and audit's beginning."""

    status: dict[str, Any]
    schedule: dict[str, Any]
    closed: list[Version]
    after: int


def _stored_run(config: AggregatorConfig, store: Store) -> StoredRun:
    name = config.run.name
    begun = store.runs.latest(name)
    if begun is None:
        raise SettingsError(f"{config.database} has no run{f' {name!r}' if name else ''} yet")
    closed = store.runs.versions(begun.run, last=10)
    last = closed[-1] if closed else None
    status = {
        "run": begun.run,
        **({"name": name} if name else {}),
        "method": begun.method,
        "bundle": begun.bundle,
        "round": last.round if last else 0,
        "version": last.version if last else 0,
    }
    planned, found = config_schedule(config), {}
    if not planned.is_continuous:
        due = planned.due(last.time if last else None, SystemClock().wall())
        found = {"rounds a day": planned.rounds, "next round": planned.text(due)}
    return StoredRun(
        status, found, closed, store.runs.closed_by(begun.run, store.states.first(begun.run).upto)
    )


def _run_lines(document: Mapping[str, Any]) -> list[str]:
    lines = []
    for one in document.get("runs", ()):
        plan = ", ".join(f"{key} {value}" for key, value in one["schedule"].items())
        pairs = [f"{key} {value}" for key, value in one.items() if key not in ("name", "schedule")]
        lines.append(f"run {one.get('name', '-')}: {', '.join(pairs)}; {plan or 'no schedule'}")
    return lines


def _prose(document: Mapping[str, Any]) -> str:
    head = "running" if document["running"] else "not running; from the database"
    lines = [f"fleet {document['fleet']}: {head}"]
    for name in ("checks", "run", "schedule", "devices", "refused", "store"):
        pairs = document.get(name) or {}
        if pairs:
            lines.append(f"{name}: " + ", ".join(f"{key} {value}" for key, value in pairs.items()))
    lines += _run_lines(document)
    for label, names in document.get("clusters", {}).items():
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        lines.append(f"cluster {label}: {', '.join(names[:SHOWN]) or 'none'}{more}")
    for name, load in AggregatorConfig.index.loaders("status_lines").items():
        if name in document:
            lines += load()(document[name])
    found = document.get("certificates", ())
    lines += [f"{one['kind']} {one['file']}: {one['status']}" for one in found]
    lines += _alarms(document)
    for entry in document.get("rounds", ())[:5]:
        loss = "" if entry["loss"] is None else f", loss {entry['loss']:.5g}"
        outcome = f"{entry['result']}, {entry['updates']} updates{loss}"
        lines.append(f"round {entry['round']}: version {entry['version']}, {outcome}")
    return "\n".join(lines)


def _alarms(document: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    if "halted" in document:
        lines.append(f"RUN HALTED {document['halted']}")
    if "dead_letters" in document:
        lines.append(f"dead letters: {document['dead_letters']}")
    lines += _refusals(document)
    if "configuration" in document:
        lines.append(f"configuration {document['configuration']}")
    for device, why in document.get("alarms", {}).items():
        lines.append(f"ALARM {device}: quarantined, {why}")
    for device, what in document.get("flooding", {}).items():
        lines.append(f"FLOOD {device}: {what}")
    return lines


def _refusals(document: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for reason, count in document.get("bundle_refused", {}).items():
        lines.append(f"BUNDLE REFUSED by {count} devices: {reason}")
    for roots, count in document.get("root_refused", {}).items():
        lines.append(f"ROOT REFUSED by {count} devices: each {roots}")
    for name, one in document.get("unanswered", {}).items():
        lines.append(f"RUN {name} UNANSWERED for {one['rounds']} rounds: {one['cause']}")
    for name, reasons in document.get("declined", {}).items():
        what = ", ".join(f"{reason} {count}" for reason, count in reasons.items())
        lines.append(f"run {name} declined by devices: {what}")
    return lines


class Health:
    """Exit with 0 if the daemon is ready, else with 1.

    For a container's health check. Names the missing conditions.

      gridfed-aggregator health aggregator.toml
    """

    add_arguments = staticmethod(add_config)

    @staticmethod
    def run(args: Namespace) -> CommandResult:
        """Report whether the daemon is alive and ready."""
        document = read_page(AggregatorConfig.load(args.config))
        if document is None:
            return CommandResult({"ready": False, "running": False}, "not running", RUNTIME)
        code = 0 if document["ready"] else RUNTIME
        missing = [name for name, ok in document["checks"].items() if not ok]
        state = "ready" if document["ready"] else f"not ready: {', '.join(missing) or 'starting'}"
        return CommandResult(
            {"ready": document["ready"], "running": True, "missing": missing}, state, code
        )
