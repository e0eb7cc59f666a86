"""Find the ids that are participations of one device."""

from __future__ import annotations

from collections.abc import Iterable

from aggregator.store.types import EnrolledDevice

PARTICIPATION_OF = "device"
"""Label of a further participation: the device's own id."""


def earlier_of(clients: Iterable[EnrolledDevice]) -> dict[str, tuple[str, ...]]:
    """Return the earlier participations of every id that is one of several of a device.

    The label ``device`` names the device; ids without it that share a key are one device too.

    >>> own, further = EnrolledDevice("m", (b"k",)), EnrolledDevice("a", (b"k",), labels=(("device", "m"),))
    >>> earlier_of([further, own, EnrolledDevice("other", (b"o",))])
    {'a': ('m',)}
    """
    participations: dict[str, list[tuple[bool, str]]] = {}
    owner_of_key: dict[bytes, str] = {}
    for client in sorted(clients, key=lambda one: one.id):
        owner = dict(client.labels).get(PARTICIPATION_OF, "")
        own = (
            owner_of_key.setdefault(client.sign[-1], client.id) if client.sign and not owner else ""
        )
        participations.setdefault(owner or own or client.id, []).append((bool(owner), client.id))
    found = {}
    for members in participations.values():
        ids = [name for _, name in sorted(members)]
        found.update({name: tuple(ids[:at]) for at, name in enumerate(ids) if at})
    return found
