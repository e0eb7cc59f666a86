"""Carry out an order and record it in the audit log, in one transaction, if it changed anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from aggregator.audit_log import AuditLog, Initiator
from aggregator.operations.commands import label_text
from aggregator.operations.control_queue import ControlOrder, KnownDevices, apply
from aggregator.store.store import Store
from aggregator.store.types import EnrolledDevice
from edge_sdk.protocol.keys import kid_of


def initiator(order: ControlOrder) -> Initiator:
    return Initiator(order.via, order.who or "unknown", order.id)


def record_once(order: ControlOrder, audit_log: AuditLog, subject: str, detail: str) -> None:
    """Record an order that was carried out, unless it is recorded already, as after a crash.

    Args:
        order: The order.
        audit_log: The audit log.
        subject: What the order changed.
        detail: What was changed, in words.
    """
    if not audit_log.has(order.id):
        audit_log.record(initiator(order), order.do, subject, reason=order.why, detail=detail)


def apply_recorded(
    order: ControlOrder, store: Store, audit_log: AuditLog, known: KnownDevices | None = None
) -> str:
    """Carry out an order about a device as ``control_queue.apply`` does; return a one-line result.

    An order that was recorded is not carried out again, as after a crash between both.

    Args:
        store: Store, open for writing.
        known: As for ``apply``.
    """
    if audit_log.has(order.id):
        return f"{order.do} {order.device}: carried out before"
    if order.do == "record":
        by = initiator(order)
        audit_log.record(by, order.op, order.device, reason=order.why, detail=order.detail)
        return f"{order.op} of {order.device} is recorded"
    with store.transaction():
        before, num = _devices(order, store), store.ledgers.get(order.device).cmd
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
        if order.do == "command" and store.ledgers.get(order.device).cmd != num:
            audit_log.record(
                initiator(order),
                order.do,
                order.device,
                reason=order.why,
                detail=_command(order, store.ledgers.get(order.device).cmd),
            )
    return result


def _devices(order: ControlOrder, store: Store) -> Mapping[str, EnrolledDevice]:
    if order.do == "revoke":
        return {one.id: one for one in store.devices.all()}
    found = store.devices.get(order.device)
    return {} if found is None else {found.id: found}


def _changes(before: EnrolledDevice | None, after: EnrolledDevice) -> Iterator[str]:
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
