"""Registry of enrolled devices: keys, deny list, quarantine and presence."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from heapq import nlargest
from typing import Any

from aggregator.audit_log import DAEMON, AuditLog
from aggregator.ingress.device_refusals import DeviceRefusals
from aggregator.store.store import Store
from aggregator.store.types import Contact, DeclinedRun, EnrolledDevice
from edge_sdk.app.cli import fields
from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol.contract.method import Member
from edge_sdk.protocol.envelope import Sealed
from edge_sdk.protocol.keys import KID_SIZE, kid_of
from edge_sdk.protocol.messages import HelloMessage, MetricsMessage, StatusMessage

logger = logging.getLogger(__name__)

PARTICIPATION_OF = "device"  # label of a further participation: the device's own id


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


# prefix of a quarantine reason under which a hello is refused as well
TWO_LIVES = f"{Reason.TWO_LIVES.name}: "
_PRESENT = frozenset(("online", "sleeping", "draining"))  # a sleeping device is present


@dataclass(frozen=True, slots=True)
class Presence:
    """Last status of a device, and the time of its last message."""

    state: str = ""  # state in the last status; empty before the first
    life: int = 0  # life in the last status
    conn: int = 0  # session counter in the last status; the larger ``(life, conn)`` is newer
    seen: int = 0  # server time of the last verified message, Unix milliseconds
    sdk: str = ""  # version of its software, from its last hello; empty before the first

    @property
    def is_present(self) -> bool:
        return self.state in _PRESENT


# name of the act that brings a device into a state
_ACTS = {"quarantined": "quarantine", "revoked": "revoke", "enrolled": "release"}


class Registry:
    """Enrolled devices, read from the store once, and their presence, in memory only.

    Statuses are retained by the broker, so presence is received again after every restart. Software
    and last message are saved by ``save_contacts``, and declined runs at once.
    """

    def __init__(self, store: Store, audit_log: AuditLog | None = None) -> None:
        self._store, self._audit_log = store, audit_log
        self.revision = 0  # rises with every change of the enrolled devices
        self._clients: dict[str, EnrolledDevice] = {}
        self._keys: dict[tuple[str, bytes], bytes] = {}
        self._presence: dict[str, Presence] = {}
        self.metrics: dict[str, MetricsMessage] = {}
        self.refusals = DeviceRefusals()
        self._saved = store.contacts.all()
        for device, at in self._saved.items():
            self._presence[device] = Presence(seen=at.seen, sdk=at.sdk)
        self._declined: dict[str, dict[str, DeclinedRun]] = {}
        for run in store.declined.all():
            self._declined.setdefault(run.device, {})[run.name] = run
        self.reload()

    def reload(self) -> None:
        """Read the enrolled devices again, after another process changed them."""
        self.revision += 1
        self._clients = {client.id: client for client in self._store.devices.all()}
        self._earlier = earlier_of(self._clients.values())
        self._keys = {
            (client.id, kid_of(public)): public
            for client in self._clients.values()
            for public in client.sign
        }

    def __len__(self) -> int:
        return sum(client.state != "revoked" for client in self._clients.values())

    def labels(self, device: str) -> dict[str, str]:
        client = self._clients.get(device)
        return {} if client is None else dict(client.labels)

    def enrolled(self) -> frozenset[str]:
        """Return the devices whose messages are accepted, quarantined ones included."""
        return frozenset(c.id for c in self._clients.values() if c.state != "revoked")

    def client(self, device: str) -> EnrolledDevice | None:
        return self._clients.get(device)

    def clients(self) -> list[EnrolledDevice]:
        """Return all devices ever enrolled, sorted by id."""
        return [self._clients[name] for name in sorted(self._clients)]

    def earlier_participations(self, device: str) -> tuple[str, ...]:
        """Return the ids of the same device that come before this one.

        The device's own id, which the others' label ``device`` names, is the first.
        """
        return self._earlier.get(device, ())

    def key_of(self, device: str, kid: bytes) -> bytes | None:
        """Return a device's public key by its key id; raise Refused, REVOKED or UNKNOWN_CLIENT."""
        client = self._clients.get(device)
        if client is None:
            raise Refused(Reason.UNKNOWN_CLIENT, device)
        if client.state == "revoked":
            raise Refused(Reason.REVOKED, device)
        return self._keys.get((device, kid))

    def is_signed_by(self, device: str, kid: bytes) -> bool:
        """Return whether a device may sign with the key of this id."""
        return (device, kid) in self._keys

    def signs_with(self, device: str) -> bytes | None:
        """Return the public key with which a device signs; None unless its state is ``enrolled``.

        Of two, it is the former one, until the device has used the other.
        """
        client = self._clients.get(device)
        if client is None or client.state != "enrolled" or not client.sign:
            return None
        return client.sign[0]

    def _retire_former(self, sealed: Sealed) -> None:
        """Retire the former key of a device that uses the new one.

        A hello does not count: it has yet to be welcomed.
        """
        device, kid = sealed.sender, sealed.proof[:KID_SIZE]
        client = self._clients.get(device)
        if client is None or len(client.sign) < 2 or sealed.kind == HelloMessage.kind:
            return
        if kid != kid_of(client.sign[-1]):
            return
        with self._store.transaction():
            self._store.devices.save(replace(client, sign=client.sign[-1:]))
            if self._audit_log is not None:
                former = ", ".join(kid_of(one).hex() for one in client.sign[:-1])
                self._audit_log.record(DAEMON, "retire key", device, detail=f"key {former}")
        self.reload()
        logger.info("former key retired %s", fields(device=device, key=kid.hex()))

    def enrol(self, client: EnrolledDevice) -> None:
        self._store.devices.save(client)
        self.reload()

    def revoke(self, device: str, why: str) -> None:
        """Put a device on the deny list; its messages are no longer read."""
        self._mark(device, "revoked", why)

    def quarantine(self, device: str, why: str) -> None:
        """Stop counting a device's updates until an operator releases it."""
        if not self.is_quarantined(device):
            self._shut(device, why)

    def quarantine_clone(self, device: str, why: str) -> None:
        """Quarantine an identity used by two processes; both are refused and stop."""
        self._shut(device, TWO_LIVES + why)

    def check_one_life(self, device: str) -> None:
        """Raise Refused, TWO_LIVES, for an identity used by two processes until it is enrolled again."""
        client = self._clients.get(device)
        if client and client.state == "quarantined" and client.why.startswith(TWO_LIVES):
            raise Refused(Reason.TWO_LIVES, device)

    def quarantined(self) -> dict[str, str]:
        return {c.id: c.why for c in self.clients() if c.state == "quarantined"}

    def release(self, device: str) -> None:
        self._mark(device, "enrolled", "")

    def is_quarantined(self, device: str) -> bool:
        """Return whether a device's updates are recorded and not used."""
        client = self._clients.get(device)
        return client is not None and client.state == "quarantined"

    def presence(self, device: str) -> Presence:
        return self._presence.get(device, Presence())

    def record_contact(self, sealed: Sealed, wall: int) -> None:
        """Record the time of a verified message; retire the key that its key has replaced."""
        device = sealed.sender
        self._presence[device] = replace(self.presence(device), seen=wall)
        self._retire_former(sealed)

    def record_version(self, device: str, sdk: str) -> None:
        self._presence[device] = replace(self.presence(device), sdk=sdk)

    def save_contacts(self) -> None:
        """Write software and last message of the devices for which they have changed."""
        found = {name: Contact(at.sdk, at.seen) for name, at in self._presence.items()}
        changed = {name: one for name, one in found.items() if self._saved.get(name) != one}
        if changed:
            self._store.contacts.save(changed)
            self._saved |= changed

    def contacts(self, most: int) -> dict[str, dict[str, Any]]:
        """Return state, software and time of the last message of the devices with the newest ones.

        ``bundle refused`` is the reason of a device that refuses the bundle, ``root refused`` has the key
        ids of one that refuses the announced root.
        """
        newest = nlargest(most, self._presence.items(), key=lambda item: item[1].seen)
        return {
            name: {"state": at.state, "sdk": at.sdk, "seen": at.seen} | self.refusals.of(name)
            for name, at in newest
        }

    def follow(self, device: str, status: StatusMessage) -> Member | None:
        """Apply a status; return the membership change it causes, or None.

        The first status after the aggregator's start is always a change, because departures in the
        meantime are unknown. A will may arrive long after the device has returned: a smaller
        ``(life, conn)`` is older and changes nothing. The will of a process's first connection was
        written before its life was confirmed: it counts while that connection is the last.
        """
        before = self.presence(device)
        is_last_word = status.state == "lost" and status.conn == before.conn
        if (status.life, status.conn) < (before.life, before.conn) and not is_last_word:
            return None
        life = max(before.life, status.life) if is_last_word else status.life
        after = replace(before, state=status.state, life=life, conn=status.conn)
        self._presence[device] = after
        if before.state and before.is_present == after.is_present:
            return None
        return Member(device, after.is_present)

    def states(self) -> Counter[str]:
        """Count the devices that are not revoked by the state in their last status."""
        enrolled = self.enrolled()
        return Counter(p.state for n, p in self._presence.items() if p.state and n in enrolled)

    def present(self) -> set[str]:
        """Return the devices that are present and not shut out."""
        return {name for name, at in self._presence.items() if at.is_present} - self.shut_out()

    def shut_out(self) -> set[str]:
        return {client.id for client in self._clients.values() if client.state != "enrolled"}

    def refused_roots(self) -> Counter[str]:
        """Return the number of enrolled devices that refuse the announced root, by both key ids."""
        return self.refusals.root_counts(self.enrolled())

    def forget_bundle_refusal(self, device: str) -> None:
        """Forget refusals: the device begins a session, and repeats those that hold."""
        self.refusals.bundles.pop(device, None)
        if self._declined.pop(device, None):
            self._store.declined.forget(device)

    def decline(self, run: DeclinedRun) -> None:
        """Record that a device cannot take part in a run, until its next session."""
        known = self._declined.setdefault(run.device, {})
        if known.get(run.name) == run:
            return
        known[run.name] = run
        self._store.declined.add(run)
        about = {"device": run.device, "name": run.name or "-", "reason": run.reason}
        logger.warning("run declined %s", fields(**about))

    def has_declined(self, device: str, name: str) -> bool:
        """Return whether a device has declined the run of this name since its session began."""
        return name in self._declined.get(device, ())

    def declined(self) -> dict[str, Counter[str]]:
        """Return the number of devices that have declined each run, by its name and the reason."""
        found: dict[str, Counter[str]] = {}
        for device in sorted(self.enrolled() & self._declined.keys()):
            for run in self._declined[device].values():
                found.setdefault(run.name, Counter())[run.reason] += 1
        return found

    def outdated(self, announced: Mapping[str, bytes]) -> list[str]:
        """Return the enrolled devices whose declined bundle of a run is no longer announced."""
        return sorted(
            device
            for device in self.enrolled() & self._declined.keys()
            if any(announced.get(r.name) != r.ref for r in self._declined[device].values())
        )

    def _shut(self, device: str, why: str) -> None:
        logger.error("device quarantined %s", fields(device=device, why=why))
        self._mark(device, "quarantined", why)

    def _mark(self, device: str, state: str, why: str) -> None:
        client = self._clients.get(device)
        if client is not None:
            with self._store.transaction():
                self._store.devices.save(replace(client, state=state, why=why))
                if self._audit_log is not None:
                    self._audit_log.record(DAEMON, _ACTS[state], device, reason=why)
            self.reload()
