"""Test a ``Client`` against an aggregator that follows a script, in memory and without a broker.

>>> from tempfile import TemporaryDirectory
>>> from edge_sdk import Client, Reading
>>> from firmware_sim.testing.scripted_aggregator import ScriptedAggregator
>>> with TemporaryDirectory() as folder:
...     aggregator = ScriptedAggregator.of_bundle("load-week-1")
...     config, clock = aggregator.device_config(folder), aggregator.clock
...     with Client(config, transport=aggregator.device_link, clock=clock) as client:
...         for hour in range(499_600, 500_000):
...             client.observe(Reading("elec.import.energy", 3600 * hour, 1.0 + hour % 24))
...         aggregator.open_round(1)
...         aggregator.run(client)
...         len(aggregator.updates), aggregator.updates[0].round
(1, 1)

`LoopbackBroker` is the link; it can lose, repeat and reorder messages, and cut a connection.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edge_sdk.app.settings import from_table
from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.config import Config
from edge_sdk.link.transport import LinkUp, Message
from edge_sdk.protocol import codec, keys, topics
from edge_sdk.protocol import messages as m
from edge_sdk.protocol.contract.manifest import Manifest
from edge_sdk.protocol.envelope import AGGREGATOR, ALL, ROOT, digest, seal, unseal
from edge_sdk.store.second_count import begin_counts
from firmware_sim.testing.loopback import LoopbackBroker, LoopbackLink

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from edge_sdk.client import Client

ROOT_KEY = keys.from_seed(b"r" * 32)
AGGREGATOR_KEY = keys.from_seed(b"a" * 32)
DEVICE_KEY = keys.from_seed(b"d" * 32)
"""Keys that everybody knows: of tests alone."""

_PART = 8192  # bytes of a model in one message
_FOR_EVER = 2**47  # Unix milliseconds; the largest time of the protocol


class ManualClock:
    """Time that stands until a test moves it: seconds since the start of 2027."""

    def __init__(self) -> None:
        self.at = 1000.0

    def advance(self, seconds: float) -> None:
        self.at += seconds

    def wall(self) -> int:
        """Return Unix milliseconds."""
        return 1_800_000_000_000 + int(self.at * 1000)

    def monotonic(self) -> float:
        """Return seconds."""
        return self.at


class ScriptedAggregator:
    """Aggregator of one device that follows the protocol and the orders of a test.

    Args:
        manifest: Manifest of the run's bundle.
        archive: Digest of the bundle's archive.
        initial: Parameters of round 1, shape ``(P,)``; zeros if left out.
        broker: In-memory broker; by default one without faults.
    """

    def __init__(
        self,
        manifest: Manifest,
        archive: bytes,
        *,
        initial: ArrayLike | None = None,
        broker: LoopbackBroker | None = None,
        fleet: str = "north",
        device: str = "meter-1",
    ) -> None:
        self.manifest, self.archive, self.fleet, self.device = manifest, archive, fleet, device
        self.initial = (
            np.zeros(manifest.size, np.float32)
            if initial is None
            else np.asarray(initial, np.float32)
        )
        self.clock = ManualClock()  # clock for the device, which ``run`` moves
        self.broker = broker or LoopbackBroker(clock=self.clock.monotonic)
        self.inline, self.chunk, self.caps = 32768, 8192, ()
        self.updates: list[m.UpdateMessage] = []  # updates that have arrived, each once
        self.statuses: list[m.StatusMessage] = []
        self.receipts: list[m.ReceiptMessage] = []  # receipts that the device has sent
        self.refusals: list[m.RefusalMessage] = []  # refusals that the device has sent
        self.counts: Counter[str] = Counter()  # messages that have arrived, by kind
        self.is_mute = False  # nothing that is sent to the device arrives
        self.spec = manifest.spec()
        self._serial, self._highest, self._hello = 0, 0, b""
        self.rows: dict[tuple[int, int], bytes] = {}
        self.chunks: dict[bytes, dict[int, bytes]] = {}
        self.offers: dict[bytes, m.OfferMessage] = {}
        self.contents: dict[bytes, bytes] = {}
        self._link = self.broker.link(AGGREGATOR)
        self._link.open()
        self.serve()

    @classmethod
    def of_bundle(cls, name: str) -> ScriptedAggregator:
        """Return an aggregator that has announced a shipped bundle."""
        bundle = Bundle.open(name, trust=TrustedKeys())
        made = cls(bundle.manifest, bundle.digest, initial=bundle.initial)
        made.announce_keys()
        made.announce_bundle()
        return made

    # --- the device

    def device_config(self, folder: str | Path, **changes: Any) -> Config:  # noqa: ANN401 - keys of the file
        """Write the device's keys into a folder, and return a configuration without noise.

        Args:
            changes: Tables and keys of the configuration file.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        keys.save_signing_key(folder / "meter.key", DEVICE_KEY)
        begin_counts(folder / "meter.count", DEVICE_KEY, {})
        keys.save_public(folder / "root.pub", ROOT_KEY.public)
        table = {
            "id": self.device,
            "fleet": self.fleet,
            "state": str(folder / "state"),
            "bundle": self.manifest.name,
            "broker": {"url": "mqtt://127.0.0.1"},
            "keys": {"device": str(folder / "meter.key"), "root": str(folder / "root.pub")},
            "privacy": {"mechanism": {"name": "none"}},
            "timeouts": {"reply": "1s"},
            **changes,
        }
        return from_table(Config, table, "meter.toml")

    def device_link(self, will: Any = None) -> LoopbackLink:  # noqa: ANN401 - as the link takes it
        """Return the device's link, for ``Client(transport=...)``."""
        return self.broker.link(self.device, will)

    def run(self, client: Client, turns: int = 12, *, seconds: float = 0.01) -> None:
        """Serve the aggregator and the device in turn, and move the clock after each."""
        for _ in range(turns):
            self.serve()
            client.tick()
            self.clock.advance(seconds)

    # --- to all devices

    def announce_keys(self, *, serial: int = 1) -> None:
        message = m.KeysMessage(serial, (AGGREGATOR_KEY.public,), (), (0,), (_FOR_EVER,), 1)
        self.publish(message, ROOT_KEY, ROOT)

    def announce_bundle(self, *, shared: Sequence[str] | None = None, **changes: Any) -> None:  # noqa: ANN401 - fields
        """Publish a run of federated averaging.

        Args:
            shared: Prefixes of the shared layers; the bundle's if left out.
            changes: Other fields of the message.
        """
        shared = self.manifest.shared if shared is None else shared
        found = m.BundleMessage(
            serial=1,
            name=self.manifest.name,
            version=self.manifest.version,
            digest=self.archive,
            size=100,
            spec=self.manifest.spec(tuple(shared)).digest,
            sdk="0.1.0",
            method="fedavg",
            run=1,
            shared=tuple(shared),
        )
        self.publish(replace(found, **changes), ROOT_KEY, ROOT)

    def open_round(
        self,
        number: int,
        version: int = 0,
        weights: ArrayLike | None = None,
        *,
        retained: bool = True,
        **changes: Any,  # noqa: ANN401 - fields of the message
    ) -> None:
        """Publish a model and the task to train it.

        Args:
            weights: Shared parameters; those of the bundle if left out.
            retained: False: the content must be requested.
            changes: Other fields of the message.
        """
        self._serial += 1
        w = self.spec.shared(self.initial) if weights is None else weights
        content = codec.encode(
            m.ContentBody(
                run=changes.get("run", 1),
                version=version,
                part="shared",
                spec=self.spec.digest,
                enc="f4",
                blob=codec.pack_tensor(np.asarray(w, np.float32), "f4"),
            )
        )
        manifest = m.ModelMessage(
            serial=self._serial,
            run=1,
            round=number,
            version=version,
            phase="train",
            part="shared",
            spec=self.spec.digest,
            enc="f4",
            digest=digest(content),
            size=len(content),
            chunk=_PART,
            until=_FOR_EVER,
            spread=0,
            inline=self.inline,
            share=1.0,
            vals={"steps": 3.0, "rate": self.manifest.training.rate},
        )
        self.contents[digest(content)[:16]] = content
        if retained:
            for i, start in enumerate(range(0, len(content), _PART)):
                part = m.PartMessage(digest(content)[:16], i, content[start : start + _PART])
                self.send(topics.part(self.fleet, i), part, AGGREGATOR_KEY, AGGREGATOR, ALL)
        self.publish(replace(manifest, **changes), AGGREGATOR_KEY, AGGREGATOR)

    def publish(self, message: m.ProtocolMessage, signer: keys.SigningKey, sender: str) -> None:
        self.send(topics.common(self.fleet, message.kind), message, signer, sender, ALL)

    # --- to the device

    def answer(self, message: m.ProtocolMessage) -> None:
        topic = topics.down(self.fleet, self.device, message.kind)
        self.send(topic, message, AGGREGATOR_KEY, AGGREGATOR, self.device)

    def send(
        self,
        topic: str,
        message: m.ProtocolMessage,
        signer: keys.SigningKey,
        sender: str,
        recipient: str,
    ) -> None:
        """Sign and send a message; to all devices it is retained."""
        payload = seal(
            codec.encode(message),
            kind=message.kind,
            sender=sender,
            recipient=recipient,
            fleet=self.fleet,
            signer=signer,
        )
        if not (self.is_mute and recipient == self.device):
            self._link.publish(topic, payload, retain=recipient == ALL)

    # --- from the device

    def serve(self) -> None:
        """Receive the messages that have arrived, and answer them."""
        for event in self._link.poll(0.0):
            if isinstance(event, LinkUp):
                up = topics.up(self.fleet, "+", "#")
                self._link.subscribe(up, topics.status(self.fleet, "+"))
            elif isinstance(event, Message):
                self._link.acknowledge(event)
                self.receive(event)

    def receive(self, publish: Message) -> None:
        """Answer one message of the device."""
        address = topics.parse(publish.topic)
        assert address is not None
        proved = unseal(
            publish.payload,
            kind=address.kind,
            sender=self.device,
            recipient=AGGREGATOR,
            fleet=self.fleet,
            key_of=lambda _sender, _kid: DEVICE_KEY.public,
        )
        message = codec.decode(proved.kind, proved.body)
        self.counts[message.kind] += 1
        match message:
            case m.HelloMessage():
                self.welcome(message, proved.ref)
            case m.UpdateMessage():
                self.settle(message, proved.digest)
            case m.OfferMessage():
                self._grant(message)
            case m.ChunkMessage():
                self._collect(message)
            case m.HaveMessage():
                self.answer(m.ChunkMessage(message.id, 0, blob=self.contents[message.id]))
            case m.StatusMessage():
                self.statuses.append(message)
            case m.ReceiptMessage():
                self.receipts.append(message)
            case m.RefusalMessage():
                self.refusals.append(message)

    def welcome(self, hello: m.HelloMessage, ref: bytes) -> None:
        """Answer a hello; ``ref`` is its reference, 16 bytes."""
        if ref != self._hello and hello.life <= self._highest:
            self.answer(m.FloorMessage(ref, self._highest))
            return
        self._hello, self._highest = ref, max(self._highest, hello.life)
        self.answer(
            m.WelcomeMessage(
                hello=ref,
                life=hello.life,
                spent=hello.spent,
                time=1_800_000_000_000,
                wire=1,
                caps=self.caps,
                run=1,
                inline=self.inline,
                window=4,
                quota=2**30,
                hold=2,
                cmd=0,
            )
        )

    def settle(self, update: m.UpdateMessage, whole: bytes) -> None:
        """Record an update and send its receipt.

        Args:
            whole: Digest of its whole body, 32 bytes.
        """
        number = (update.life, update.seq)
        assert self.rows.setdefault(number, whole) == whole, "two bodies under one number"
        if update not in self.updates:
            self.updates.append(update)
        self.answer(m.ReceiptMessage(*number, whole[:16], 0, update.run, update.round))

    def _grant(self, offer: m.OfferMessage) -> None:
        number = (offer.life, offer.seq)
        if number in self.rows:
            self.answer(m.ReceiptMessage(*number, offer.digest[:16], 0, offer.run, offer.round))
            return
        self.offers[offer.digest[:16]] = offer
        self.grant_chunks(offer.digest[:16])

    def grant_chunks(self, which: bytes, window: int = 2) -> None:
        """Grant the chunks of an offer that have not arrived."""
        have, offer = self.chunks.setdefault(which, {}), self.offers[which]
        count = -(-offer.size // offer.chunk)
        bitmap = sum(1 << i for i in have).to_bytes(-(-count // 8), "little") if have else b""
        self.answer(m.GrantMessage(which, bitmap, window, 60_000))

    def _collect(self, chunk: m.ChunkMessage) -> None:
        offer = self.offers.get(chunk.id)
        if offer is None:
            return
        have = self.chunks[chunk.id]
        have[chunk.i] = chunk.blob
        count = -(-offer.size // offer.chunk)
        if len(have) < count:
            self.grant_chunks(chunk.id)
            return
        body = b"".join(have[i] for i in range(count))
        assert digest(body) == offer.digest, "chunks that are not the offer"
        self.settle(codec.decode(m.UpdateMessage, body), offer.digest)
