"""Show the newest records of the audit log, and which acts it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aggregator.config import AggregatorConfig
from aggregator.store.audit_record import AuditRecord
from aggregator.store.opener import open_store

SHOWN = 200  # newest records on the page
READ = 5000  # newest records that are searched


def audit_page(config: AggregatorConfig, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the newest records, all or those of the query's ``subject``, ``actor`` or ``act``."""
    wanted = {name: query[name] for name in ("subject", "actor", "act") if query.get(name)}
    with open_store(config.database, read_only=True) as store:
        last = store.audit_log.last()
        total = 0 if last is None else last.number
        found = [
            one
            for one in store.audit_log.records(max(1, total - READ + 1))
            if all(getattr(one, name) == value for name, value in wanted.items())
        ]
    return {
        "records": found[-SHOWN:][::-1],
        "total": total,
        "head": _head(config, last),
        "wanted": wanted,
    }


def _head(config: AggregatorConfig, last: AuditRecord | None) -> str:
    return "" if last is None else last.digest(config.fleet).hex()
