"""Answer sets that arrive over the fleet's broker, as the identity under which the witness is enrolled."""

from __future__ import annotations

import logging
import time
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path

from aggregator.extensions.sums.sum_set import AnswerFile, SetFile
from aggregator.extensions.sums.witness_command import add_keys, add_least, add_record, read_keys
from aggregator.extensions.sums.witness_record import WitnessKeys, WitnessRecord
from edge_sdk.app.cli import CommandResult, fields, start_logging
from edge_sdk.errors import Refused
from edge_sdk.link.broker_options import Broker
from edge_sdk.link.transport import LinkUp, Message, Transport
from edge_sdk.protocol import keys, topics
from edge_sdk.protocol.envelope import AGGREGATOR, seal, unseal

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WitnessLink:
    """The witness's end of the fleet's link."""

    link: Transport
    fleet: str
    name: str  # device id under which the witness is enrolled
    public: dict[bytes, bytes]  # the aggregator's public keys by key id
    record: WitnessRecord
    own: WitnessKeys

    def turn(self, timeout: float) -> int:
        """Serve the link for some seconds; return the number of answers that were sent."""
        sent = 0
        for event in self.link.poll(timeout):
            match event:
                case LinkUp():
                    self.link.subscribe(topics.down(self.fleet, self.name, SetFile.kind))
                case Message():
                    sent += self._answer(event)
                    self.link.acknowledge(event)
        return sent

    def _answer(self, message: Message) -> bool:
        """Open the set of a message; return whether its answer was passed to the link."""
        try:
            sealed = unseal(
                message.payload, kind=SetFile.kind, sender=AGGREGATOR, recipient=self.name,
                fleet=self.fleet, key_of=lambda _, kid: self.public.get(kid),
            )  # fmt: skip
            answer = self.record.open(sealed.content, self.own)
        except Refused as refused:
            logger.warning("set refused %s", fields(why=refused))
            return False
        payload = seal(
            answer, kind=AnswerFile.kind, sender=self.name, recipient=AGGREGATOR,
            fleet=self.fleet, signer=self.own.sign,
        )  # fmt: skip
        logger.info("set opened %s", fields(of=sealed.digest[:8].hex()))
        return self.link.publish(topics.up(self.fleet, self.name, AnswerFile.kind), payload)


class Serve:
    """Open sets that arrive over the fleet's broker, until SIGINT or for some seconds.

    The witness is enrolled as a device of the fleet, by the key of --key, and named in the section [sums]
    of the aggregator. The aggregator sends a set again each minute until the answer is there.
    """

    @staticmethod
    def add_arguments(parser: ArgumentParser) -> None:
        """Add broker, identity, keys, record and the least number of members."""
        add = parser.add_argument
        add(
            "--broker", required=True, metavar="URL", help="mqtts://host:8883 of the fleet's broker"
        )
        add("--fleet", required=True, help="fleet")
        add("--id", required=True, help="device id under which the witness is enrolled")
        text = "public keys of the aggregator, received from the operator"
        add("--public", metavar="FILE", nargs="+", required=True, help=text)
        for name, text in (
            ("ca-file", "authority of the broker's certificate"),
            ("cert-file", "certificate of the witness for TLS"),
            ("key-file", "private key of that certificate"),
        ):
            add(f"--{name}", metavar="FILE", type=Path, help=text)
        add("--seconds", type=float, default=float("inf"), help="end after this time (never)")
        add_least(parser)
        add_keys(parser)
        add_record(parser)

    @staticmethod
    def run(args: Namespace) -> CommandResult:
        """Serve the link; every set that is opened or refused is logged."""
        from edge_sdk.link.mqtt import MqttLink  # noqa: PLC0415 - loads paho

        files = {name: getattr(args, name) for name in ("ca_file", "cert_file", "key_file")}
        broker = Broker(url=args.broker, client_id=args.id, **files)
        start_logging()
        known = {keys.kid_of(one): one for one in map(keys.read_public, args.public)}
        link, end, sent = MqttLink(broker), time.monotonic() + args.seconds, 0
        link.open()
        with WitnessRecord(Path(args.record), args.least) as record:
            served = WitnessLink(link, args.fleet, args.id, known, record, read_keys(args))
            try:
                while time.monotonic() < end:
                    sent += served.turn(min(1.0, max(0.0, end - time.monotonic())))
            except KeyboardInterrupt:
                pass
            finally:
                link.close()
        return CommandResult({"answers": sent}, f"{sent} answers were sent")
