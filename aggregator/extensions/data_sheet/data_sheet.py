"""Make the data-protection sheet of a fleet from its configuration, its database and its audit log.

The standards are NIST SP 800-226 (evaluation of differential privacy, by the blocks of its pyramid),
IEC 62443-4-2 (technical requirements for components) and ETSI EN 303 645 (consumer devices, by its provisions).
An item depends on the configuration where its ``lacks`` says so. A place is a configuration key, a command, a
test or a page; tests check that each exists. This is no certificate: an assessor judges.

The table of fields is that of docs/privacy.md: tests/aggregator/extensions/data_sheet/test_data_sheet.py
compares the two, and tests/edge_sdk/privacy/test_sent.py compares the page with the messages themselves.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from aggregator.config import AggregatorConfig, BoundRun
from aggregator.operations import operator_alerts
from aggregator.operations.signing_keys import signer
from aggregator.store.audit_record import AuditRecord
from aggregator.store.store import Store
from edge_sdk.app.cli import installed_version
from edge_sdk.link.broker_options import is_loopback
from edge_sdk.protocol.contract.method import Up
from edge_sdk.protocol.keys import kid_of
from edge_sdk.protocol.root_keys import read_root

# returns why the configuration does not meet an item; empty if it does
Lacks = Callable[[AggregatorConfig], str]


def _nothing(_config: AggregatorConfig) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class StandardItem:
    """An item of a standard."""

    standard: str
    item: str
    title: str
    # where it is shown: ``key K``, ``command C``, ``test T`` or ``page P``
    places: tuple[str, ...] = ()
    lacks: Lacks = _nothing  # why the configuration does not meet it


def _never(reason: str) -> Lacks:
    return lambda _config: reason


def _unlimited(config: AggregatorConfig) -> str:
    if config.admission.max_updates is not None:
        return ""
    return "admission.max_updates is not set: only the ledgers of the devices limit the number of updates"


def _plain_link(config: AggregatorConfig) -> str:
    url = urlsplit(config.broker.url)
    is_here = config.broker.url == "auto" or is_loopback(url.hostname or "")
    if is_here or url.scheme in ("mqtts", "wss"):
        return ""
    return f"broker.url is {config.broker.url}: no TLS on the way to the broker"


def _readable(config: AggregatorConfig) -> str:
    if "update" in config.encrypted_kinds:
        return _plain_link(config)
    return "encryption.kinds lacks update: the broker can read updates"


def _no_authority(config: AggregatorConfig) -> str:
    if config.section("ca").folder is not None or config.broker.ca_file is not None:
        return ""
    return "neither ca.folder nor broker.ca_file is set: the link has no certificates"


def _no_revocation(config: AggregatorConfig) -> str:
    if config.section("ca").access_file is not None:
        return ""
    return "ca.access_file is not set: revoke refuses the device's messages, and the broker still serves it"


def _no_sign_in(config: AggregatorConfig) -> str:
    if config.section("console").oidc is not None:
        return ""
    return "console.oidc is not set: console users have local passwords, and commands know login names only"


def _no_https(config: AggregatorConfig) -> str:
    section = config.section("console")
    host = section.listen.rpartition(":")[0].strip("[]")
    if section.cert_file is not None or section.behind_proxy or is_loopback(host):
        return ""
    return f"console.listen is {section.listen} without console.cert_file: forms are sent without HTTPS"


def _items() -> tuple[StandardItem, ...]:
    rows = tomllib.loads(files(__package__).joinpath("standard_items.toml").read_text("utf-8"))[
        "item"
    ]
    return tuple(
        StandardItem(
            row["standard"], row["item"], row["title"], tuple(row.get("places", ())), _lacks(row)
        )
        for row in rows
    )


def _lacks(row: Mapping[str, str]) -> Lacks:
    if "never" in row:
        return _never(row["never"])
    return _FUNCTIONS[row["lacks"]] if "lacks" in row else _nothing


_FUNCTIONS: Mapping[str, Lacks] = {
    "no_authority": _no_authority,
    "no_https": _no_https,
    "no_revocation": _no_revocation,
    "no_sign_in": _no_sign_in,
    "plain_link": _plain_link,
    "readable": _readable,
    "unlimited": _unlimited,
}

ITEMS = _items()  # all items, by standard and number


@dataclass(frozen=True, slots=True)
class SentFields:
    """Some fields of a message from a device."""

    kind: str
    fields: tuple[str, ...]
    reveals: str  # what they reveal
    covered_by: str  # ``mechanism``, ``public``, ``process``, ``opt-in`` or ``own noise``


# every field of every message from a device
SENT = tuple(
    SentFields(row["kind"], tuple(row["fields"]), row["reveals"], row["covered_by"])
    for row in tomllib.loads(files(__package__).joinpath("sent_fields.toml").read_text("utf-8"))[
        "sent"
    ]
)


NEWEST = 20  # records of the audit log that the sheet shows


def data_sheet(
    config: AggregatorConfig, bound: Sequence[BoundRun], store: Store, now: int
) -> dict[str, Any]:
    """Return the sheet as plain JSON values; ``now`` is in Unix milliseconds."""
    return {
        "fleet": config.fleet,
        "made": _moment(now),
        "software": installed_version(),
        "configuration": str(config.file),
        "runs": [_run(one) for one in bound],
        "recorded_on_devices": [row for one in bound for row in _recorded(one)],
        "sent": _sent(config, bound, store),
        "privacy": _privacy(config, store),
        "retention": _retention(config, store),
        "keys": _keys(config, now),
        "acts": _acts(config, store),
        "standards": [
            {
                "standard": one.standard,
                "item": one.item,
                "title": one.title,
                "met": not (lack := one.lacks(config)),
                "reason": lack,
                "places": [_place(config, place) for place in one.places],
            }
            for one in ITEMS
        ],
    }


def _place(config: AggregatorConfig, place: str) -> str:
    kind, _, name = place.partition(" ")
    if kind != "key":
        return place
    section, _, key = name.partition(".")
    return f"{place} = {getattr(config.tables.get(section) or config.section(section), key)}"


def _run(bound: BoundRun) -> dict[str, Any]:
    section, manifest = bound.config.run, bound.bundle.manifest
    return {
        "name": section.name or "(announced to all)",
        "method": section.method,
        "rule": str(section.rule.get("name", "")),
        "bundle": f"{manifest.name} version {manifest.version}",
        "digest": bound.bundle.digest.hex(),
        "answer": bound.ask.up.value or "nothing",
        "cohort": dict(section.cohort),
    }


def _recorded(bound: BoundRun) -> Iterator[dict[str, Any]]:
    manifest = bound.bundle.manifest
    name = bound.config.run.name or manifest.name
    window = f"{manifest.window.lookback} steps of {manifest.window.step_seconds} s"
    yield {
        "run": name,
        "what": manifest.target.stream,
        "kind": "target",
        "unit": manifest.target.unit,
        "window": window,
    }
    for one in manifest.features:
        if one.kind in ("stream", "static"):
            what = one.stream or one.name
            yield {"run": name, "what": what, "kind": one.kind, "unit": one.unit, "window": window}


def _sent(
    config: AggregatorConfig, bound: Sequence[BoundRun], store: Store
) -> list[dict[str, Any]]:
    encrypted = frozenset(map(str, config.encrypted_kinds))
    found = []
    for one in SENT:
        why_not = _unused(one.kind, config, bound, store)
        found.append(
            {
                "message": one.kind,
                "fields": list(one.fields),
                "reveals": one.reveals,
                "covered_by": one.covered_by,
                "accepted": not why_not,
                "why_not": why_not,
                "encrypted_to_the_aggregator": one.kind in encrypted,
            }
        )
    return found


def _unused(kind: str, config: AggregatorConfig, bound: Sequence[BoundRun], store: Store) -> str:
    """Return why this fleet uses no message of a kind; empty if it does."""
    announced = store.announcements.get
    readers = [entry for entry in config.index.values() if kind in entry.row.get("kinds", ())]
    is_read = any(config.needs(entry, announced) for entry in readers)
    has_peers = any(one.ask.up is Up.PEERS for one in bound)
    reasons: Mapping[str, str] = {
        "forecast": "" if config.section("forecasts").store else "forecasts.store = false",
        "score": "" if config.section("scores").collect else "scores.collect = false",
        "trial": "" if is_read else "no rollout",
        "peer": "" if has_peers else "no run between neighbours",
        "settle": "" if has_peers else "no run between neighbours",
        "signal": "" if any(one.half.play is not None for one in bound) else "no split method",
    }
    return reasons.get(kind, "")


def _privacy(config: AggregatorConfig, store: Store) -> dict[str, Any]:
    devices = [one.id for one in store.devices.all() if one.state != "revoked"]
    spent = [int(store.ledgers.get(one).spent) for one in devices]
    limit = config.admission.max_updates
    section = config.section("scores")
    return {
        "promised_updates": limit,
        "devices": len(devices),
        "updates_median": median(spent) if spent else 0,
        "updates_largest": max(spent, default=0),
        "at_the_limit": sum(limit is not None and one >= limit for one in spent),
        "scores_least_epsilon": section.min_epsilon if section.collect else None,
        "epsilon": "set and charged on each device, which does not send it: gridfed-edge budget --datasheet",
    }


def _retention(config: AggregatorConfig, store: Store) -> list[dict[str, Any]]:
    bounds, used = config.retention, store.retention.used()
    last = store.audit_log.last()
    section = config.section("scores")
    scores = f"{section.keep_days} days" if section.collect else "none collected"
    forecasts = "the newest of each device" if config.section("forecasts").store else "none stored"
    vectors = f"{bounds.vector_bytes} bytes and {bounds.rounds} rounds"
    journal = f"{bounds.journal_bytes} bytes"
    records = f"{0 if last is None else last.number} records"
    rows = (
        ("vectors of updates and states", vectors, f"{used['vectors']} bytes", "retention.vector_bytes"),
        ("sender, number and time of updates", journal, f"{used['journal']} bytes", "retention.journal_bytes"),
        ("answers about scores", scores, "", "scores.keep_days"),
        ("forecasts of devices", forecasts, "", "forecasts.store"),
        ("audit log", "kept without limit", records, ""),
        ("size of the database", "", f"{store.size()} bytes", ""),
    )  # fmt: skip
    return [dict(zip(("what", "bound", "now", "key"), row, strict=True)) for row in rows]


def _keys(config: AggregatorConfig, now: int) -> dict[str, Any]:
    online = signer(config)
    files = ("kind", "file", "expires", "status")
    found: dict[str, Any] = {
        "root": read_root(config.root_public).name,
        "aggregator": kid_of(online.public).hex(),
        "files": [{name: one[name] for name in files} for one in operator_alerts.offline(config)],
        "encrypted_kinds": list(config.encrypted_kinds),
        "authority": None,
    }
    folder = config.section("ca").folder
    if folder is not None and folder.exists():
        at = datetime.fromtimestamp(now / 1000, UTC)
        (entry,) = config.index.having("certificates")
        valid = [one for one in entry.load("certificates")(folder) if one.is_valid(at)]
        found["authority"] = {
            "folder": str(folder),
            "certificates": len(valid),
            "next_expiry": min((one.expires for one in valid), default=None),
            "certificate_days": config.section("ca").certificate_days,
            "grace_days": config.section("ca").grace_days,
        }
    return found


def _acts(config: AggregatorConfig, store: Store) -> dict[str, Any]:
    (entry,) = config.index.having("verification")
    log = entry.load("verification")(config.fleet, [signer(config).public])
    counts: Counter[tuple[str, str]] = Counter()
    last: dict[tuple[str, str], int] = {}
    newest: list[AuditRecord] = []
    for record in store.audit_log.records():
        log.add(record)
        counts[record.act, record.via] += 1
        last[record.act, record.via] = record.time
        newest = [*newest[1 - NEWEST :], record]
    return {
        "records": log.head.number,
        "head": log.head.digest.hex(),
        "faults": [one.text for one in log.close()],
        "by_act": [
            {"act": act, "via": via, "count": count, "last": _moment(last[act, via])}
            for (act, via), count in sorted(counts.items())
        ],
        "newest": [
            {
                "record": one.number,
                "time": _moment(one.time),
                "via": one.via,
                "actor": one.actor,
                "act": one.act,
                "subject": one.subject,
                "reason": one.reason,
            }
            for one in reversed(newest)
        ],
    }


def _moment(time: int) -> str:
    return f"{datetime.fromtimestamp(time / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
