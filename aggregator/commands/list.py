"""List the devices with state, labels, software, last message and count of releases.

Presence comes from the running daemon's page, for the 1000 devices with the newest messages. Software and last
message are written to the database every minute and at the daemon's end; the page has newer ones.

gridfed-aggregator list aggregator.toml --json
gridfed-aggregator list aggregator.toml --label region=north,kind=meter
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from aggregator.commands.arguments import add_config, require_database
from aggregator.commands.status import read_page
from aggregator.config import AggregatorConfig
from aggregator.operations.commands import label_text, parse_labels
from aggregator.store.opener import open_store
from aggregator.store.types import Contact
from edge_sdk.app.cli import CommandResult


def add_arguments(parser: ArgumentParser) -> None:
    """Add the configuration, and labels that a listed device must have."""
    add_config(parser)
    parser.add_argument(
        "--label", metavar="NAME=VALUE,…", default="", help="list only devices with these labels"
    )


def run(args: Namespace) -> CommandResult:
    """List the devices and their state."""
    config, wanted = require_database(AggregatorConfig.load(args.config)), parse_labels(args.label)
    page = read_page(config)
    contacts: Mapping[str, Any] = page.get("contacts", {}) if page else {}
    with open_store(config.database, read_only=True) as store:
        unusable, saved = store.unusable(), store.contacts.all()
        declined: dict[str, dict[str, str]] = {}
        for run in store.declined.all():
            declined.setdefault(run.device, {})[run.name or "-"] = run.reason
        rows: list[dict[str, Any]] = [
            {
                "id": client.id,
                "state": client.state,
                "generation": client.generation,
                "why": client.why,
                "labels": dict(client.labels),
                "life": store.ledgers.get(client.id).cur,
                "spent": store.ledgers.get(client.id).spent,
                "presence": contacts.get(client.id, {}).get("state") or None,
                "version": _newest(contacts, saved, client.id).sdk or None,
                "last seen": _time(_newest(contacts, saved, client.id).seen),
                "declined": declined.get(client.id, {}),
                "unusable": unusable.get(client.id, []),
            }
            for client in store.devices.all()
            if wanted.items() <= dict(client.labels).items()
        ]
    text = "\n".join(
        f"{r['id']:<24} {r['state']:<12} {r['presence'] or '-':<9} version {r['version'] or '-':<8} "
        f"seen {r['last seen'] or '-':<20} releases {r['spent']}  "
        f"{label_text(r['labels'].items())}  {r['why']}{_declined_text(r['declined'])}".rstrip()
        for r in rows
    )
    if rows and page is None:
        text += "\nno presence: the daemon does not answer on http.listen"
    if unusable:
        text += "\n" + "\n".join(
            f"warning: {device}: stored numbers out of bounds: {', '.join(names)}; "
            "enrol it with a new key"
            for device, names in unusable.items()
        )
    nothing = f"no device has {args.label}" if wanted else "no device is enrolled"
    return CommandResult({"devices": rows}, text or nothing)


def _newest(contacts: Mapping[str, Any], saved: Mapping[str, Contact], device: str) -> Contact:
    page = contacts.get(device, {})
    before = saved.get(device, Contact())
    return Contact(page.get("sdk") or before.sdk, page.get("seen") or before.seen)


def _declined_text(declined: Mapping[str, str]) -> str:
    """Return the runs that a device has declined, with the reasons.

    >>> _declined_text({"cells": "UNKNOWN_KIND"}), _declined_text({})
    ('  cannot take part in cells: UNKNOWN_KIND', '')
    """
    runs = ", ".join(f"{name}: {reason}" for name, reason in declined.items())
    return f"  cannot take part in {runs}" if runs else ""


def _time(seen: int | None) -> str | None:
    """Format Unix milliseconds.

    >>> _time(1_700_000_000_000), _time(0)
    ('2023-11-14T22:13:20Z', None)
    """
    return f"{datetime.fromtimestamp(seen // 1000, UTC):%Y-%m-%dT%H:%M:%SZ}" if seen else None
