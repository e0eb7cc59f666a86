"""Run an admission worker: it checks updates and queues them for the process that runs the rounds.

Workers share the updates of a fleet by a shared subscription. A worker decides nothing and answers
nobody: a receipt leaves after the commit of the process that runs the rounds. What a worker that dies
had not queued yet, devices send again.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from aggregator.config import AggregatorConfig, bind, broker_of
from aggregator.extensions.postgres.update_queue import QueuedUpdate, open_queue
from aggregator.ingress.flood_control import FloodControl, updates_filter
from aggregator.ingress.message_bodies import MessageBodies
from aggregator.ingress.rate_limits import RateLimiter, RateLimits
from aggregator.operations.startup import bodies_of, terms_of
from aggregator.store.errors import DatabaseError, is_from_database
from aggregator.store.opener import open_store
from aggregator.store.store import Store
from aggregator.store.types import EnrolledDevice
from edge_sdk.app.cli import fields, notify, stop_signals
from edge_sdk.app.clock import Clock, SystemClock
from edge_sdk.app.settings import SettingsError
from edge_sdk.errors import Failure, Reason, Refused
from edge_sdk.link.broker_options import Broker
from edge_sdk.link.mqtt import MqttLink
from edge_sdk.link.tls_files import unqualified
from edge_sdk.link.transport import LinkDown, LinkUp, Message, Transport
from edge_sdk.protocol import codec, topics
from edge_sdk.protocol.envelope import AGGREGATOR
from edge_sdk.protocol.keys import kid_of
from edge_sdk.protocol.messages import UpdateMessage

if TYPE_CHECKING:
    from aggregator.extensions.postgres.postgres_queue import PostgresQueue

READ_AFTER = 1.0  # s at least between two readings of the keys for a key that is unknown
READ_EVERY = 30.0  # s after which the keys are read again in any case


class DeviceKeyCache:
    """Public keys of the devices, read from the database again after a while.

    A key that is withdrawn may be used for up to ``READ_EVERY`` seconds: who takes the update from the
    queue looks it up again.
    """

    def __init__(self, clients: Callable[[], Iterable[EnrolledDevice]], clock: Clock) -> None:
        """Read the keys."""
        self._clients, self._clock = clients, clock
        self._read()

    def key_of(self, device: str, kid: bytes) -> bytes | None:
        """Return a device's public key by its key id; None if there is none."""
        found, age = self._keys.get((device, kid)), self._clock.monotonic() - self._read_at
        if age >= READ_EVERY or (found is None and age >= READ_AFTER):
            self._read()
            found = self._keys.get((device, kid))
        return found

    def _read(self) -> None:
        self._read_at = self._clock.monotonic()
        self._keys = {
            (client.id, kid_of(public)): public
            for client in self._clients()
            if client.state != "revoked"
            for public in client.sign
        }


class UpdateCheck:
    """The checks of one worker: flood, size, envelope, signature, schema and the decoded vector.

    An update that fails one is passed on without a key, so that the daemon repeats the check and answers.
    Only floods and names with too many forged signatures are dropped, as the daemon drops them.

    Attributes:
        counts: Updates by result: ``checked``, ``dropped``, or the reason of a refusal.
    """

    def __init__(
        self,
        bodies: MessageBodies,
        keys: DeviceKeyCache,
        clock: Clock,
        *,
        inline: int,
        quotas: RateLimits,
        sizes: Mapping[bytes, int],
    ) -> None:
        """Start without usage.

        Args:
            inline: Largest body of an update that is sent whole, bytes.
            sizes: Number of scalars of the shared vector of each run, by its layout digest.
        """
        self.counts: Counter[str] = Counter()
        self._bodies, self._keys, self._clock = bodies, keys, clock
        self._inline, self._sizes = inline, sizes
        self._limiter, self._floods = RateLimiter(quotas), FloodControl()

    def checked(self, message: Message) -> QueuedUpdate | None:
        """Return an update with the result of the checks; None if it is dropped."""
        now, address = self._clock.monotonic(), topics.parse(message.topic)
        if (
            address is None
            or (address.fleet, address.direction, address.kind)
            != (self._bodies.fleet, "up", UpdateMessage.kind)
            or not self._floods.admits(address.id, len(message.payload), now)
            or self._limiter.is_ignored(address.id, now)
        ):
            self.counts["dropped"] += 1
            return None
        key = b""
        try:
            key = self._verified(address.id, message.payload)
            self.counts["checked"] += 1
        except Refused as refused:
            self.counts[refused.reason.name] += 1
            if refused.reason is Reason.BAD_SIGNATURE:
                self._limiter.failed(address.id, now)
        except Exception as error:  # the daemon meets the same defect, and sets the message aside
            self.counts["INTERNAL"] += 1
            about = {"device": address.id, "error": repr(error)}
            logger.exception("update not checked %s", fields(**about))
        return QueuedUpdate(message.topic, message.payload, verified_by=key)

    def _verified(self, device: str, payload: bytes) -> bytes:
        """Return the key that an update is signed with, after all checks."""
        used: list[bytes] = []

        def key_of(sender: str, kid: bytes) -> bytes | None:
            found = self._keys.key_of(sender, kid)
            used.extend([] if found is None else [found])
            return found

        kind = UpdateMessage.kind
        sealed = self._bodies.unseal(payload, kind=kind, sender=device, key_of=key_of)
        if len(sealed.body) > self._inline:
            raise Refused(Reason.TOO_LARGE, f"{len(sealed.body)} bytes")
        update = codec.decode(UpdateMessage, sealed.content)
        size = self._sizes.get(update.spec)
        if size is None:
            raise Refused(Reason.WRONG_SPEC, update.spec.hex())
        codec.unpack_tensor(update.blob, update.enc, size)
        return used[-1]


logger = logging.getLogger(__name__)

TURN = 1.0  # s, longest wait for a message
REPORT = 1.0  # s between two reports to the database, which are the worker's signs of life
HANDOVER = 1.5  # s in which the daemon notices that this worker leaves: it looks every second
GOODBYE = 0.5  # s for what the broker had sent before the worker left
AGAIN = 1.0  # s until the next attempt to reach a database that was lost
IN_FLIGHT = 200  # updates that the broker may send before the first is acknowledged


def none_refused() -> int:
    """Return 0: the link counts no refused subscriptions."""
    return 0


class UpdateWorker:
    """One worker. ``open`` it, call ``turn`` again and again, and ``leave``.

    Args:
        transport: The link, with a session that ends with the connection.
        most: Updates in the queue above which no more are taken from the broker.
        refused: Returns the number of subscriptions that the broker has refused.
    """

    def __init__(
        self,
        transport: Transport,
        queue: PostgresQueue,
        check: UpdateCheck,
        fleet: str,
        *,
        most: int,
        clock: Clock,
        refused: Callable[[], int] = none_refused,
    ) -> None:
        self._transport, self._queue, self._check = transport, queue, check
        self._filter = updates_filter(fleet)
        self._most, self._clock, self._refused = most, clock, refused
        self._held: list[Message] = []
        self._is_full = False
        self._report_at = clock.monotonic()

    def turn(self, timeout: float = 0.0) -> int:
        """Check, queue and acknowledge arrived messages; return their number.

        While the queue is full, messages stay unacknowledged, and the broker soon sends no more.

        Raises:
            SettingsError: The broker has no shared subscriptions.
        """
        for event in self._transport.poll(timeout):
            match event:
                case Message():
                    self._held.append(event)
                case LinkUp(shares=shares):
                    if not shares:
                        raise self._unshared("has none")
                    self._transport.subscribe(self._filter)
                    self._queue.show(is_receiving=True)
                    logger.info("link up %s", fields(filter=self._filter))
                case LinkDown(why=why):
                    self._queue.show(is_receiving=False)
                    logger.info("link down %s", fields(why=why))
        if self._refused():
            raise self._unshared(f"refused {self._filter}")
        if self._clock.monotonic() >= self._report_at or self._is_full:
            self._report()
        return 0 if self._is_full else self._pass_on()

    def leave(self) -> None:
        """Return the subscription to the daemon if this is the last worker; process the remaining messages."""
        self._queue.show(is_receiving=False)
        self._serve_for(HANDOVER)
        self._transport.unsubscribe(self._filter)
        self._serve_for(GOODBYE)
        self._report()
        self._transport.close()

    def _serve_for(self, seconds: float) -> None:
        until = self._clock.monotonic() + seconds
        while self._clock.monotonic() < until:
            self.turn(0.1)

    def _pass_on(self) -> int:
        messages, self._held = self._held, []
        checked = [self._check.checked(message) for message in messages]
        self._queue.append([one for one in checked if one is not None])
        for message in messages:
            self._transport.acknowledge(message)
        return len(messages)

    def _report(self) -> None:
        self._report_at = self._clock.monotonic() + REPORT
        self._queue.report(self._check.counts)
        was_full, length = self._is_full, self._queue.length()
        self._is_full = length >= self._most
        if self._is_full and not was_full:
            do = "see whether the daemon runs"
            logger.warning("queue full %s", fields(updates=length, do=do))

    def _unshared(self, what: str) -> SettingsError:
        return SettingsError(
            f"admission workers need shared subscriptions of MQTT 5; this broker {what}",
            hint="use a broker that has them, such as Mosquitto, or set admission.workers = false",
        )


def broker_for(config: AggregatorConfig, name: str) -> Broker:
    """Return the settings of a worker's link; raise Failure without an address, or for the daemon's certificate."""
    if config.broker.url == "auto":
        raise SettingsError(f"{config.file.name}: broker.url: a worker needs the broker's address")
    broker: Broker = broker_of(config, config.broker.url)
    client_id = broker.client_id
    if config.broker.cert_file is None:
        client_id = f"{client_id}.worker-{name}"
    elif unqualified(client_id)[1] == AGGREGATOR:
        raise Failure(
            f"{config.broker.cert_file} names the daemon, whose connection a worker would end",
            hint="gridfed-aggregator ca issue worker-1, and set GRIDFED_AGGREGATOR_BROKER__CERT_FILE",
        )
    return replace(broker, client_id=client_id, session_expiry=0, receive_maximum=IN_FLIGHT)


def check_of(config: AggregatorConfig, store: Store, clock: Clock) -> UpdateCheck:
    """Return the checks of the configured runs, whose bundles are read."""
    terms = terms_of(config)
    specs = [bind(view).spec for view in config.views()]
    return UpdateCheck(
        bodies_of(config, store, lambda _device, _kid: False),
        DeviceKeyCache(store.devices.all, clock),
        clock,
        inline=terms.inline,
        quotas=terms.quotas,
        sizes={spec.digest: spec.shared_size for spec in specs},
    )


def serve(config: AggregatorConfig, name: str) -> dict[str, int]:
    """Run a worker until a signal; return the numbers of its updates by result.

    It waits for a database that is away after it has worked once.
    """
    broker = broker_for(config, name)
    if not config.admission.workers:
        raise SettingsError(f"{config.file.name}: admission.workers: expected true for a worker")
    counts: Counter[str] = Counter()
    with stop_signals() as stopping:
        has_worked = False
        while not stopping.is_set():
            try:
                with ExitStack() as held:
                    check, worker = _begun(config, broker, name, held)
                    has_worked = True
                    logger.info("worker started %s", fields(fleet=config.fleet, name=name))
                    notify("READY=1")
                    held.callback(counts.update, check.counts)
                    while not stopping.is_set():
                        worker.turn(TURN)
                        notify("WATCHDOG=1")
                    worker.leave()
            except Exception as error:
                is_away = isinstance(error, DatabaseError) or is_from_database(error)
                if not (has_worked and is_away):
                    raise
                logger.error("database lost %s", fields(why=error))  # noqa: TRY400 - no defect
                notify("WATCHDOG=1")
                time.sleep(AGAIN)
    logger.info("worker stopped %s", fields(fleet=config.fleet, name=name))
    return dict(counts)


def _begun(
    config: AggregatorConfig, broker: Broker, name: str, held: ExitStack
) -> tuple[UpdateCheck, UpdateWorker]:
    """Open the database and the link of a worker, which ``held`` closes."""
    clock = SystemClock()
    queue = open_queue(config.database, worker=name)
    held.callback(queue.close)
    store = held.enter_context(open_store(config.database, read_only=True))
    check = check_of(config, store, clock)
    link = MqttLink(broker)
    held.callback(link.close)
    worker = UpdateWorker(
        link,
        queue,
        check,
        config.fleet,
        most=config.admission.max_queued_updates,
        clock=clock,
        refused=lambda: link.counters["refused_filters"],
    )
    link.open()
    return check, worker
