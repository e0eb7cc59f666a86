"""Who may speak, and who is there: enrolled devices, their keys, deny list, presence."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, replace

from aggregator.store.types import EnrolledDevice, Store
from edge_sdk.app.cli import fields
from edge_sdk.wire.contract.method import Member
from edge_sdk.wire.errors import Reason, Refused
from edge_sdk.wire.keys import kid_of
from edge_sdk.wire.protocol.messages import MetricsMessage, StatusMessage

logger = logging.getLogger(__name__)

TWO_LIVES = f"{Reason.TWO_LIVES.name}: "
"""How the reason of a quarantine begins under which neither process is even greeted."""

_THERE = frozenset(("online", "sleeping", "draining"))  # a sleeping device has not left


@dataclass(frozen=True, slots=True)
class Presence:
    """What a device last said of itself, and when anything was last heard from it.

    Attributes:
        state: Of its last status; empty before the first.
        life: Its life then.
        conn: Its session counter then; the larger ``(life, conn)`` is the newer word.
        seen: Server time of its last verified message, Unix milliseconds.
    """

    state: str = ""
    life: int = 0
    conn: int = 0
    seen: int = 0

    @property
    def is_there(self) -> bool:
        """Whether the device takes part in the fleet now."""
        return self.state in _THERE


class Registry:
    """The enrolled devices, read from the store once; presence lives in memory only.

    Statuses are retained by the broker, so presence is told again after every restart.
    """

    def __init__(self, store: Store) -> None:
        """Read the clients."""
        self._store = store
        self._clients: dict[str, EnrolledDevice] = {}
        self._keys: dict[tuple[str, bytes], bytes] = {}
        self._presence: dict[str, Presence] = {}
        self.metrics: dict[str, MetricsMessage] = {}
        self.reload()

    def reload(self) -> None:
        """Read the clients again, after another process enrolled or revoked one."""
        self._clients = {client.id: client for client in self._store.clients()}
        self._keys = {
            (client.id, kid_of(public)): public
            for client in self._clients.values()
            for public in client.sign
        }

    def __len__(self) -> int:
        """How many devices are enrolled and not revoked."""
        return sum(client.state != "revoked" for client in self._clients.values())

    def enrolled(self) -> frozenset[str]:
        """Return the devices that may speak; quarantined ones may."""
        return frozenset(c.id for c in self._clients.values() if c.state != "revoked")

    def client(self, device: str) -> EnrolledDevice | None:
        """Return an enrolled device."""
        return self._clients.get(device)

    def clients(self) -> list[EnrolledDevice]:
        """Return all devices ever enrolled, by id."""
        return [self._clients[name] for name in sorted(self._clients)]

    def key_of(self, device: str, kid: bytes) -> bytes | None:
        """Return the key with this id that may sign for a device.

        Raises:
            Refused: REVOKED; UNKNOWN_CLIENT.
        """
        client = self._clients.get(device)
        if client is None:
            raise Refused(Reason.UNKNOWN_CLIENT, device)
        if client.state == "revoked":
            raise Refused(Reason.REVOKED, device)
        return self._keys.get((device, kid))

    def signs_with(self, device: str) -> bytes | None:
        """Return the newest key of a device that may speak; None where it may not."""
        client = self._clients.get(device)
        if client is None or client.state != "enrolled" or not client.sign:
            return None
        return client.sign[-1]

    def enrol(self, client: EnrolledDevice) -> None:
        """Take a device in, or give it other keys."""
        self._store.put_client(client)
        self.reload()

    def revoke(self, device: str, why: str) -> None:
        """Put a device on the deny list: from now on nothing it says is read."""
        self._mark(device, "revoked", why)

    def quarantine(self, device: str, why: str) -> None:
        """Count nothing a device sends until an operator has looked at it."""
        if not self.is_quarantined(device):
            self._shut(device, why)

    def part(self, device: str, why: str) -> None:
        """Quarantine an identity that two processes use: both are told, and stop."""
        self._shut(device, TWO_LIVES + why)

    def check_one_life(self, device: str) -> None:
        """Refuse an identity that two processes use, until it is enrolled again.

        Raises:
            Refused: TWO_LIVES.
        """
        client = self._clients.get(device)
        if client and client.state == "quarantined" and client.why.startswith(TWO_LIVES):
            raise Refused(Reason.TWO_LIVES, device)

    def quarantined(self) -> dict[str, str]:
        """Return who is quarantined, and why."""
        return {c.id: c.why for c in self.clients() if c.state == "quarantined"}

    def release(self, device: str) -> None:
        """Let a quarantined or revoked device take part again."""
        self._mark(device, "enrolled", "")

    def is_quarantined(self, device: str) -> bool:
        """Whether a device's updates are recorded and not used."""
        client = self._clients.get(device)
        return client is not None and client.state == "quarantined"

    def presence(self, device: str) -> Presence:
        """Return what is known of a device's whereabouts."""
        return self._presence.get(device, Presence())

    def heard(self, device: str, wall: int) -> None:
        """Note that a verified message came from a device."""
        self._presence[device] = replace(self.presence(device), seen=wall)

    def follow(self, device: str, status: StatusMessage) -> Member | None:
        """Take a status; return who came or went because of it.

        The first word since our own start is always news: nobody knows who left meanwhile. A will
        may arrive long after the device is back: the smaller ``(life, conn)`` is the older word and
        changes nothing. That of a process's first connection was written before its life was
        confirmed: it counts while that connection is the last.
        """
        before = self.presence(device)
        is_last_word = status.state == "lost" and status.conn == before.conn
        if (status.life, status.conn) < (before.life, before.conn) and not is_last_word:
            return None
        life = max(before.life, status.life) if is_last_word else status.life
        after = replace(before, state=status.state, life=life, conn=status.conn)
        self._presence[device] = after
        if before.state and before.is_there == after.is_there:
            return None
        return Member(device, after.is_there)

    def states(self) -> Counter[str]:
        """Count the devices by the state they last told."""
        return Counter(p.state for p in self._presence.values() if p.state)

    def there(self) -> set[str]:
        """Return the devices that take part in the fleet now, and may."""
        return {name for name, at in self._presence.items() if at.is_there} - self.shut_out()

    def shut_out(self) -> set[str]:
        """Return the devices that an operator, or a forgery, has shut out."""
        return {client.id for client in self._clients.values() if client.state != "enrolled"}

    def _shut(self, device: str, why: str) -> None:
        logger.error("quarantined %s", fields(device=device, why=why))
        self._mark(device, "quarantined", why)

    def _mark(self, device: str, state: str, why: str) -> None:
        client = self._clients.get(device)
        if client is not None:
            self._store.put_client(replace(client, state=state, why=why))
            self.reload()
