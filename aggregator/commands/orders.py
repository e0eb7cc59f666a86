"""Apply an operator's orders to the database, or queue them for the daemon that has it open."""

from __future__ import annotations

from dataclasses import replace

from aggregator.audit_log.recorder import AuditLog, login_name
from aggregator.commands.errors import require_database
from aggregator.config import AggregatorConfig
from aggregator.operations.control_queue import (
    ControlOrder,
    OrderError,
    check_orders,
    leave,
    renewal,
    waiting,
)
from aggregator.operations.known_devices import KnownDevices
from aggregator.operations.recorded_orders import apply_recorded
from aggregator.operations.signing_keys import signer
from aggregator.store.errors import DatabaseBusyError
from aggregator.store.opener import open_store
from edge_sdk.app.cli import CommandResult

WHY_LIMIT = 200  # characters that an order carries


def apply_orders(config: AggregatorConfig, orders: list[ControlOrder]) -> CommandResult:
    """Apply orders here, or queue them for the daemon that has the database open.

    Raises:
        OrderError: One cannot be carried out; none was.
    """
    require_database(config)
    if any(len(order.why) > WHY_LIMIT for order in orders):
        raise OrderError(f"--why: expected at most {WHY_LIMIT} characters")
    who = login_name()[:64]
    orders = [replace(order, who=order.who or who) for order in orders]
    try:
        with open_store(config.database) as store:
            audit_log = AuditLog(store, config.fleet, signer(config))
            check_orders(orders, store)
            is_enrolment = all(order.do == "enrol" for order in orders)
            known = KnownDevices(store.clients()) if is_enrolment else None
            with store.transaction():
                done = [apply_recorded(order, store, audit_log, known) for order in orders]
    except DatabaseBusyError:
        queued = [order for _, order in waiting(config.inbox) if order is not None]
        with open_store(config.database, read_only=True) as store:
            check_orders(orders, store, queued)
            notes = [renewal(order, store) for order in orders]
        for order in orders:
            leave(config.inbox, order)
        done = [
            f"{order.do} {order.device}: queued for the running daemon{more}"
            for order, more in zip(orders, notes, strict=True)
        ]
    return CommandResult({"done": done}, "\n".join(done))
