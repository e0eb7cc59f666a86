"""Index enrolled devices by id and by key for orders that are checked and carried out together."""

from __future__ import annotations

from collections.abc import Iterable

from aggregator.store.types import EnrolledDevice


class KnownDevices:
    """Enrolled devices by id and by key, so that many orders read the database once.

    Args:
        clients: The devices.

    >>> known = KnownDevices([EnrolledDevice("m-1", (b"a",)), EnrolledDevice("m-2", (b"b",))])
    >>> known.insert(EnrolledDevice("m-2", (b"a",)))
    >>> [one.id for one in known.others_of(known["m-1"])], known.get("m-3")
    (['m-2'], None)
    """

    def __init__(self, clients: Iterable[EnrolledDevice]) -> None:
        self._by_id: dict[str, EnrolledDevice] = {}
        self._by_key: dict[bytes, dict[str, None]] = {}
        for client in clients:
            self.insert(client)

    def __contains__(self, device: str) -> bool:
        """Return whether a device is enrolled, or was and is revoked."""
        return device in self._by_id

    def __getitem__(self, device: str) -> EnrolledDevice:
        """Return a device."""
        return self._by_id[device]

    def get(self, device: str) -> EnrolledDevice | None:
        """Return a device; None if no device has the id."""
        return self._by_id.get(device)

    def insert(self, client: EnrolledDevice) -> None:
        """Insert or replace a device."""
        before = self._by_id.get(client.id)
        for key in () if before is None else before.sign:
            self._by_key[key].pop(client.id, None)
        self._by_id[client.id] = client
        for key in client.sign:
            self._by_key.setdefault(key, {})[client.id] = None

    def others_of(self, device: EnrolledDevice) -> list[EnrolledDevice]:
        """Return the other participations of a device, by id: those that have its key."""
        ids = {name for key in device.sign for name in self._by_key.get(key, ())}
        return [self._by_id[name] for name in sorted(ids - {device.id})]
