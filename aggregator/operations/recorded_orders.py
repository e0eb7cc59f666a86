"""Carry out an order and record it in the audit log, in one transaction, if it changed anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from aggregator.audit_log.recorder import AuditLog, Initiator
from aggregator.operations.control_queue import ControlOrder, apply
from aggregator.operations.known_devices import KnownDevices
from aggregator.operations.labels import label_text
from aggregator.store.types import EnrolledDevice, Store
from edge_sdk.wire.keys import kid_of


def initiator(order: ControlOrder) -> Initiator:
    """Return who gave an order."""
    return Initiator(order.via, order.who or "unknown", order.id)


def apply_recorded(
    order: ControlOrder, store: Store, audit_log: AuditLog, known: KnownDevices | None = None
) -> str:
    """Carry out an order about a device as ``control_queue.apply`` does; return a one-line result.

    An order that was recorded is not carried out again, as after a crash between both.

    Args:
        order: The order.
        store: Store, open for writing.
        audit_log: The audit log in it.
        known: As for ``apply``.

    Raises:
        OrderError: As ``apply``; nothing was changed or recorded.
    """
    if audit_log.has(order.id):
        return f"{order.do} {order.device}: carried out before"
    if order.do == "record":
        by = initiator(order)
        audit_log.record(by, order.op, order.device, reason=order.why, detail=order.detail)
        return f"{order.op} of {order.device} is recorded"
    with store.transaction():
        before, num = _devices(order, store), store.ledger(order.device).cmd
        result = apply(order, store, known)
        after = _devices(order, store)
        for device in sorted(after):
            if after[device] != before.get(device):
                audit_log.record(
                    initiator(order),
                    order.do,
                    device,
                    reason=order.why,
                    detail="; ".join(_changes(before.get(device), after[device])),
                )
        if order.do == "command" and store.ledger(order.device).cmd != num:
            audit_log.record(
                initiator(order),
                order.do,
                order.device,
                reason=order.why,
                detail=_command(order, store.ledger(order.device).cmd),
            )
    return result


def _devices(order: ControlOrder, store: Store) -> Mapping[str, EnrolledDevice]:
    """Return the devices that an order may change: all participations if it revokes one."""
    if order.do == "revoke":
        return {one.id: one for one in store.clients()}
    found = store.client(order.device)
    return {} if found is None else {found.id: found}


def _changes(before: EnrolledDevice | None, after: EnrolledDevice) -> Iterator[str]:
    """Yield what changed in the entry of a device."""
    if before is None or before.sign != after.sign:
        yield f"key {', '.join(kid_of(one).hex() for one in after.sign)}"
    if before is not None and before.state != after.state:
        yield f"from {before.state} to {after.state}"
    if before is not None and before.generation != after.generation:
        yield f"generation {after.generation}"
    if (before.labels if before is not None else ()) != after.labels:
        yield f"labels {label_text(after.labels) or 'none'}"


def _command(order: ControlOrder, num: int) -> str:
    args = "".join(f" {name}={value:g}" for name, value in sorted(order.args.items()))
    return f"command {num}: {order.op}{args}"
