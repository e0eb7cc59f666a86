"""Give orders to the daemon through its queue, and record each with who, when and why."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from aggregator.config import AggregatorConfig
from aggregator.operations.control_queue import ControlOrder, check_order, leave, waiting
from aggregator.store.opener import open_store
from edge_sdk.app.permissions import make_private_file, make_private_folder

LARGEST = 4_000_000  # bytes of the log; then the older half is kept beside it
SHOWN = 200  # newest entries on the page


@dataclass(frozen=True, slots=True)
class LoggedOrder:
    """One order as given in the console.

    Attributes:
        at: Unix milliseconds.
        who: Name of the user.
        do: Order.
        device: Device, or ``_all``.
        op: Command for the device, or changes of labels.
        why: Reason.
    """

    at: int
    who: str
    do: str
    device: str
    op: str
    why: str


def give_order(config: AggregatorConfig, order: ControlOrder, log: Path, now: int) -> None:
    """Check an order against the database, record it, and queue it for the daemon.

    Args:
        config: Configuration of the daemon.
        order: The order, with ``who`` and ``why``.
        log: File of the log.
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
