"""Apply an operator's orders to the database, or queue them for the daemon that has it open."""

from __future__ import annotations

from aggregator.commands.errors import require_database
from aggregator.config import AggregatorConfig
from aggregator.operations.control_queue import (
    ControlOrder,
    apply,
    check_order,
    leave,
    renewal,
    waiting,
)
from aggregator.store.errors import DatabaseBusyError
from aggregator.store.opener import open_store
from edge_sdk.app.cli import CommandResult


def apply_orders(config: AggregatorConfig, orders: list[ControlOrder]) -> CommandResult:
    """Apply orders here, or queue them for the daemon that has the database open.

    Raises:
        OrderError: One cannot be carried out; none was.
    """
    require_database(config)
    try:
        with open_store(config.database) as store:
            for n, order in enumerate(orders):
                check_order(order, store, orders[:n])
            done = [apply(order, store) for order in orders]
    except DatabaseBusyError:
        queued = [order for _, order in waiting(config.inbox) if order is not None]
        with open_store(config.database, read_only=True) as store:
            for n, order in enumerate(orders):
                check_order(order, store, [*queued, *orders[:n]])
            notes = [renewal(order, store) for order in orders]
        for order in orders:
            leave(config.inbox, order)
        done = [
            f"{order.do} {order.device}: queued for the running daemon{more}"
            for order, more in zip(orders, notes, strict=True)
        ]
    return CommandResult({"done": done}, "\n".join(done))
