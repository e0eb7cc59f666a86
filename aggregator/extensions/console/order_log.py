"""Give orders to the daemon through its queue, and record each with who, when and why."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aggregator.config import AggregatorConfig
from aggregator.extensions.console.access import RefusedRequestError
from aggregator.operations.control_queue import ControlOrder, check_order, leave, waiting
from aggregator.store.opener import open_store
from edge_sdk.app.permissions import make_private_file, make_private_folder
from edge_sdk.app.schema import SchemaError, build

LARGEST = 4_000_000  # bytes of the log; then the older half is kept beside it
ORDERS = ("pause", "resume", "round", "revoke", "label", "unlearn", "command")
SHOWN = 200  # newest entries on the page


@dataclass(frozen=True, slots=True)
class LoggedOrder:
    """One order as given in the console."""

    at: int  # Unix milliseconds
    who: str  # name of the user
    do: str
    device: str  # device, or ``_all``
    op: str  # command for the device, or changes of labels
    why: str


def order_of(form: Mapping[str, str], who: str, acts: Mapping[str, Sequence[str]]) -> ControlOrder:
    """Return the order of a form.

    Args:
        acts: Acts of the orders that extensions execute.

    Raises:
        RefusedRequestError: 400.
    """
    do, op = form.get("do", ""), form.get("op", "")
    if do not in ORDERS and do not in acts:
        raise RefusedRequestError(400, f"There is no order {do!r}.")
    if do in acts and op not in acts[do]:
        raise RefusedRequestError(400, f"There is no act {op!r} of a {do}.")
    if not form.get("why"):
        raise RefusedRequestError(400, "Give a reason: it is recorded with the order.")
    args = {"releases": float(_whole(form["releases"]))} if form.get("releases") else {}
    raw: dict[str, Any] = {name: form.get(name, "") for name in ("do", "op", "why", "labels")}
    raw |= {"device": form.get("device") or "_all", "who": who, "via": "console", "args": args}
    try:
        return build(ControlOrder, raw)
    except SchemaError as error:
        raise RefusedRequestError(400, str(error)) from error


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 10:
        raise RefusedRequestError(400, f"releases: expected a whole number, got {text!r}.")
    return int(text)


def give_order(config: AggregatorConfig, order: ControlOrder, log: Path, now: int) -> None:
    """Check an order against the database, record it, and queue it for the daemon.

    Args:
        order: The order, with ``who`` and ``why``.
        now: Unix milliseconds.

    Raises:
        OrderError: It cannot be carried out; nothing was recorded.
    """
    queued = [one for _, one in waiting(config.inbox) if one is not None]
    with open_store(config.database, read_only=True) as store:
        check_order(order, store, queued)
    op = order.op or order.labels
    entry = LoggedOrder(now, order.who, order.do, order.device, op, order.why)
    make_private_folder(log.parent)
    if log.exists() and log.stat().st_size > LARGEST:
        log.replace(log.with_suffix(".1.jsonl"))
    if not log.exists():
        make_private_file(log)
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(entry)) + "\n")
        file.flush()
        os.fsync(file.fileno())
    leave(config.inbox, order)


def given_orders(log: Path, most: int = SHOWN) -> list[LoggedOrder]:
    """Return the newest orders of a log, newest first; a damaged line is left out."""
    if not log.exists():
        return []
    found = []
    for line in log.read_text("utf-8", "replace").splitlines()[-most:]:
        try:
            found.append(LoggedOrder(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return found[::-1]


def queued_orders(config: AggregatorConfig) -> list[ControlOrder]:
    """Return the orders that the daemon has not carried out yet, oldest first."""
    return [order for _, order in waiting(config.inbox) if order is not None]
