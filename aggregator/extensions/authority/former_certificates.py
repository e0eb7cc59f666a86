"""Find who holds no certificate of the authority that replaces another one."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from aggregator.extensions.authority.record import Record
from aggregator.extensions.authority.record_entries import IssuedCertificate, newest

GRACE: Final = timedelta(days=180)
"""Time after the end of a device's certificate, in which it may still be renewed, where none is configured."""


def devices_of_former(
    record: Record, key_id: str, now: datetime, grace: timedelta = GRACE
) -> list[str]:
    """Return the names of devices that wait for a certificate of the authority with this key.

    Left out are revoked devices, members whose certificate expired longer ago than the time of grace, and
    other devices whose certificate has expired.

    Args:
        key_id: Identifier of the key of the next authority.
    """
    held = newest(one for one in record.certificates() if one.role == "device")
    members = {one.name: one.state for one in record.members()}

    def is_waiting(one: IssuedCertificate) -> bool:
        end = datetime.fromisoformat(one.expires) + (grace if one.name in members else timedelta())
        return one.issuer != key_id and members.get(one.name) != "revoked" and now < end

    return sorted(one.name for one in held.values() if is_waiting(one))


def servers_of_former(record: Record, key_id: str, now: datetime) -> list[IssuedCertificate]:
    """Return the certificates of brokers and aggregators that are not of the authority with this key."""
    held = newest(one for one in record.certificates() if one.role in ("broker", "aggregator"))
    return [one for one in held.values() if one.issuer != key_id and one.is_valid(now)]
