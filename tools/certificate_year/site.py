"""The servers of a simulated fleet: the authority behind its EST server, and the broker's check of a client."""

from __future__ import annotations

import ssl
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

from cryptography import x509

from aggregator.extensions.authority import enrolment, folder
from aggregator.extensions.authority.certificate_reader import validity
from aggregator.extensions.authority.enrolment import EnrolmentPolicy
from aggregator.extensions.authority.est_server import EstServer, _Handler
from aggregator.extensions.authority.est_service import EstService
from aggregator.extensions.authority.record import Record, opened
from aggregator.extensions.authority.record_entries import AuthorityAct
from edge_sdk.link.tls_files import load
from tools.certificate_year import memory_tls
from tools.certificate_year.faults import CERTIFICATE, Faults
from tools.certificate_year.machine_clock import DAY, HOUR, MINUTE, MachineClock

HOST, URL, FLEET = "localhost", "https://localhost:8443", "north"
OPERATOR: Final = "operator"
CLOCK_BEHIND: Final = 2 * HOUR  # s by which the broker's clock is behind at times

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """The fields of a client's certificate that the broker reads."""

    serial: int
    since: float  # start of its validity, Unix seconds
    until: float  # end of its validity, Unix seconds


def moment(seconds: float) -> datetime:
    """Return Unix seconds as the authority counts time."""
    return datetime.fromtimestamp(int(seconds), UTC)


def is_within(intervals: list[Interval], now: float) -> bool:
    """Return whether a moment is in one of some intervals.

    >>> is_within([(1.0, 2.0)], 1.5), is_within([(1.0, 2.0)], 2.0)
    (True, False)
    """
    return any(begin <= now < end for begin, end in intervals)


def outages(
    rng: Random, begin: float, end: float, every: float, lasts: list[float]
) -> list[Interval]:
    """Return random intervals, ``every`` seconds apart on average, with a duration from a list."""
    found, at = [], begin + rng.uniform(0.2, 1.0) * every
    while at < end:
        found.append((at, min(end, at + rng.choice(lasts) * rng.uniform(0.5, 1.0))))
        at = found[-1][1] + every * rng.uniform(0.6, 1.4)
    return found


class Site:
    """The servers of a fleet, and the true time.

    Args:
        place: Folder for the authority.
        begin: Begin of the year, Unix seconds.
        end: Time from which no server fails.
        rng: Source of outages.
        faults: Kills of devices.

    Attributes:
        now: True time, Unix seconds.
        is_network_up: Whether the device whose turn it is has a network.
        machine: Clock of the device whose turn it is; None while none acts.
        calm: Time from which no server fails, and no device is off.
        is_faulty: Whether requests and answers are lost.
        acts: Acts that the authority has passed on for the audit log, by actor and act.
        refused: Requests that the authority has refused, by reason.
        counts: Other events, by name.
        authority_down: Intervals in which the EST server is unreachable.
        broker_behind: Intervals in which the broker's clock is behind.
    """

    def __init__(self, place: Path, begin: float, end: float, rng: Random, faults: Faults) -> None:
        self.now, self.rng, self.faults, self.is_network_up = begin, rng, faults, True
        self.place, self.is_faulty, self.calm = place, False, end
        self.machine: MachineClock | None = None
        self.acts: Counter[tuple[str, str]] = Counter()
        self.counts: Counter[str] = Counter()
        self.authority_down: list[Interval] = []
        self.broker_behind: list[Interval] = []
        self._read: dict[bytes, ClientCertificate] = {}
        self._accepted: set[bytes] = set()  # clients that OpenSSL has verified
        self._servers: dict[bytes, dict[str, Any]] = {}  # the broker's, by the client's
        folder.create(place, "simulated", moment(begin), timedelta(days=3650), who=OPERATOR)
        self._issue_broker()
        self._start()
        self._plan(begin, end)

    def _plan(self, begin: float, end: float) -> None:
        first = begin + DAY
        self._restarts = outages(self.rng, first, end, 4 * DAY, [0.0])
        long = [5 * MINUTE, HOUR, 6 * HOUR, DAY, 3 * DAY]
        self.authority_down = outages(self.rng, first, end, 15 * DAY, long)
        self.broker_behind = outages(self.rng, first, end, 45 * DAY, [DAY, 2 * DAY])
        self._broker_due = begin + 180 * DAY

    def _issue_broker(self, *, is_renewal: bool = False) -> None:
        """Issue the broker's certificate, as ``ca issue`` does once a year, and restart the broker."""
        folder.issue(
            self.place,
            "broker",
            "broker",
            moment(self.now),
            timedelta(days=365),
            hosts=[HOST],
            is_renewal=is_renewal,
            who=OPERATOR,
        )
        self._servers.clear()
        self.reload_broker()

    def reload_broker(self) -> None:
        """Let the broker read its files again."""
        file = self.place / "issued" / "broker.pem"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        load(context, self.place / folder.CERTIFICATE, file, file.with_suffix(".key"))
        context.load_verify_locations(cafile=self.place / folder.REVOKED)
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF | memory_tls.NO_CHECK_TIME
        self._broker = context
        found = x509.load_pem_x509_crl((self.place / folder.REVOKED).read_bytes())
        due: Any = getattr(found, "next_update_utc", None) or found.next_update
        self._list_until = due.replace(tzinfo=UTC).timestamp()
        self._revoked = {one.serial_number for one in found}
        self.counts["broker reloaded"] += 1

    # --- the authority -----------------------------------------------------------------------------

    def _start(self) -> None:
        policy = EnrolmentPolicy(FLEET)
        service = EstService(
            self.place,
            policy,
            deliver_acts=self._receive,
            clock=lambda: moment(self.now),
            reload_broker=self.reload_broker,
        )
        self.server = EstServer(("127.0.0.1", 0), service, [HOST])

    def _receive(self, acts: list[AuthorityAct]) -> None:
        self.acts.update((OPERATOR if one.actor == OPERATOR else "device", one.act) for one in acts)

    def close(self) -> None:
        self.server.server_close()
        self.server.service.close()

    def kill(self) -> None:
        """Stop the EST server, as ``kill -9`` does: only the record is left."""
        self.server.server_close()
        service = self.server.service
        service._thread.submit(service._enrolment.record.close).result()  # noqa: SLF001 - as the kernel does
        service._thread.shutdown()  # noqa: SLF001 - as above

    def restart(self, *, is_kill: bool) -> None:
        """Stop the EST server, and start it again."""
        (self.kill if is_kill else self.close)()
        self.counts["authority killed" if is_kill else "authority restarted"] += 1
        self._start()

    def turn(self) -> None:
        """Run the EST server's periodic work; renew the broker's certificate once a year."""
        if self._restarts and self._restarts[0][0] <= self.now:
            del self._restarts[0]
            self.restart(is_kill=False)
        if self.now >= self._broker_due:
            self._broker_due += 365 * DAY
            self._issue_broker(is_renewal=True)
        self.server._turn()  # noqa: SLF001 - what its thread calls

    def open_est(self, host: str, client: ssl.SSLContext) -> Any:  # noqa: ANN401 - a function
        """Connect a device to the EST server.

        Raises:
            OSError: It cannot be reached, or one end refuses the other.
        """
        if not self.is_network_up or is_within(self.authority_down, self.now):
            raise ConnectionRefusedError(111, "Connection refused")
        is_dated = memory_tls.prepare(client)
        peer, leaf = memory_tls.shake_hands(client, self.server.context, host)
        memory_tls.judge(client, leaf, is_dated=is_dated)
        handle = memory_tls.answered(_Handler, self.server, peer)

        def answer(request: bytes) -> bytes:
            self.faults.step("request sent")
            self._fail("request lost")
            found: bytes = handle(request)
            self.faults.step("certificate issued")
            if self.is_faulty and self.rng.random() < 0.002:
                self.restart(is_kill=True)
                raise ConnectionResetError(104, "Connection reset by peer")
            self._fail("answer lost")
            self.faults.step("answer received")
            return found

        return answer

    def _fail(self, what: str) -> None:
        if self.is_faulty and self.rng.random() < 0.03:
            self.counts[what] += 1
            raise ConnectionResetError(104, "Connection reset by peer")

    def list_devices(self, names: list[str]) -> list[tuple[str, str, str]]:
        """List devices, as ``ca passwords`` does; return serial, name and password of each."""
        until = moment(self.now + 30 * DAY)
        rows = [(f"SN-{name}", name, "") for name in names]
        with opened(self.place) as record:
            return enrolment.list_serials(record, rows, until, now=moment(self.now), who=OPERATOR)

    def record(self) -> Record:
        return Record(self.place)

    # --- the broker --------------------------------------------------------------------------------

    def connect(self, client: ssl.SSLContext, content: bytes) -> None:
        """Connect a device to the broker, both ends checking the other one's certificate."""
        is_dated = memory_tls.prepare(client)
        leaf = self._servers.get(content)
        if leaf is None:  # else OpenSSL has verified both chains before
            _, leaf = memory_tls.shake_hands(client, self._broker, HOST)
            self._servers[content] = leaf
            self._accepted.add(content)
            self.counts["handshakes"] += 1
        memory_tls.judge(client, leaf, is_dated=is_dated)
        behind = CLOCK_BEHIND if is_within(self.broker_behind, self.now) else 0.0
        if not self._is_dated(content, self.now - behind):
            raise ssl.SSLError(1, "the broker refuses the client's certificate")

    def is_valid(self, content: bytes) -> bool:
        """Return whether the broker accepts a certificate that it has verified before, at the true time."""
        return content in self._accepted and self._is_dated(content, self.now)

    def _is_dated(self, content: bytes, now: float) -> bool:
        found = self._read.get(content)
        if found is None:
            one = x509.load_pem_x509_certificate(content[content.index(CERTIFICATE) :])
            since, until = (x.timestamp() for x in validity(one))
            found = self._read[content] = ClientCertificate(one.serial_number, since, until)
        is_listed = found.serial in self._revoked or now >= self._list_until
        return found.since <= now <= found.until and not is_listed
