"""Create a live source from its ``[[source]]`` section."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

from edge_sdk.app.settings import Duration, from_table, seconds
from edge_sdk.errors import ConfigError
from edge_sdk.sources.base import Decoder, FramedLink, Framer
from edge_sdk.sources.byte_links import ListeningFeed, SourceAddress
from edge_sdk.sources.json_values import JsonValue, names_of
from edge_sdk.sources.json_values import decoder as json_decoder
from edge_sdk.sources.normaliser import Normaliser
from edge_sdk.sources.p1 import TelegramFramer, telegram
from edge_sdk.sources.recording import RecordedFeed
from edge_sdk.sources.register_map import RegisterPoint, block
from edge_sdk.sources.spool import SpoolReader
from edge_sdk.sources.stream_map import StreamName, names
from edge_sdk.sources.threaded_source import ThreadedSource
from edge_sdk.wire.errors import LinkError
from edge_sdk.wire.link.broker_options import Broker
from edge_sdk.wire.schema import Between, Length, Matches

S = TypeVar("S", bound="LiveSection")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSection:
    """Keys common to every live source."""

    type: str  # kind of source
    map: Mapping[str, Any] = field(default_factory=dict)  # streams by name, added to the table
    step: Duration | None = None  # grid of the registers; unset: the bundle's
    max_gap: Duration | None = None  # longest interpolated gap; unset: a step
    max_power: Annotated[float, Between(1e-6, 1e9)] = 250.0  # largest accepted power, kW
    rollover: Annotated[float, Between(0, 1e12)] = 0.0  # value at which registers wrap; 0 is never


@dataclass(frozen=True, slots=True, kw_only=True)
class P1Section(LiveSection):
    """``type = "p1"``: the consumer port of a household meter."""

    url: str  # serial:///dev/ttyUSB0?baud=115200 or tcp://host:port
    utc_offset: Annotated[float, Between(-12, 14)] = 1.0  # hours of the meter's winter time


@dataclass(frozen=True, slots=True, kw_only=True)
class ModbusSection(LiveSection):
    """``type = "modbus"``: registers of a meter or a power supply, read-only."""

    url: str  # tcp://host:502 or serial:///dev/ttyUSB0?baud=9600
    unit_id: Annotated[int, Between(0, 255)] = 1  # unit identifier
    framing: Literal["auto", "rtu"] = "auto"  # rtu: serial framing, also behind a TCP converter
    poll_interval: Duration = "10s"  # polling interval
    timeout: Duration = "2s"  # longest wait for a reply
    sunspec: bool = False  # discover the points by SunSpec, instead of point
    point: Annotated[tuple[RegisterPoint, ...], Length(0, 256)] = ()  # registers to read


@dataclass(frozen=True, slots=True, kw_only=True)
class PmSection(LiveSection):
    """``type = "pm3gpp"``: performance files of a base station, TS 32.435 or TS 28.532."""

    folder: str = ""  # folder in which the element manager drops files
    pattern: str = "*.xml*"  # shell pattern of file names
    objects: str = "*"  # measured objects to read, by distinguished name
    poll_interval: Duration = "5s"  # scan interval; a file must be unchanged for so long
    max_age: Duration = "7d"  # largest age of a file


@dataclass(frozen=True, slots=True, kw_only=True)
class OcppSection(LiveSection):
    """``type = "ocpp"``: a charger whose messages ``gridfed-edge tap`` records."""

    spool: str = ""  # folder of the tap's recordings, read by this source
    spool_bytes: Annotated[int, Between(1 << 19, 1 << 32)] = 4 << 20  # maximum size of the folder
    listen: str = "tcp://127.0.0.1:9000"  # address at which the charger connects
    csms: str = ""  # back office: wss://backoffice.example/ocpp
    ca_file: str = ""  # authority that signed the back office's certificate
    cert_file: str = ""  # certificate of the tap, for chargers that use TLS
    key_file: str = ""  # private key of that certificate
    ocmf_key: str = ""  # public key of the meter: signed readings are then verified


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonSourceSection(LiveSection):
    """Keys common to the sources of JSON documents."""

    url: str  # address of the service or broker
    value: Annotated[tuple[JsonValue, ...], Length(1, 64)]  # values of a document
    ca_file: Path | None = None  # authority that signed the other end's certificate
    insecure: bool = False  # allow an unencrypted link to another host

    def __post_init__(self) -> None:
        """Refuse the map of other interfaces: each value names its stream."""
        if self.map:
            raise ValueError("map: not used here; [[source.value]] names the stream of each value")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSourceSection(JsonSourceSection):
    """``type = "http"``: JSON of a service on the local network, polled."""

    poll_interval: Duration = "15m"  # polling interval, at least 1s
    timeout: Duration = "10s"  # longest wait for a whole answer
    token_file: Path | None = None  # file with a bearer token in its first line


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttSourceSection(JsonSourceSection):
    """``type = "mqtt"``: JSON messages, or plain numbers, of a local broker."""

    topic: Annotated[str, Matches(r"[^\x00]{1,512}")]  # topic filter; + and # are wildcards
    retained: bool = False  # accept retained messages without a time of their own
    username: str = ""  # user name of the broker
    password_file: Path | None = None  # file whose first line is the password
    cert_file: Path | None = None  # certificate of this client
    key_file: Path | None = None  # private key of that certificate
    client_id: Annotated[str, Length(0, 64)] = ""  # empty: one made from the topic
    protocol: Literal[4, 5] = 5  # MQTT 5, or 4 for 3.1.1


@dataclass(frozen=True, slots=True)
class Interface(Generic[S]):
    """A factory for one type of source.

    Attributes:
        name: Name in the configuration, in ``streams.toml`` and in recordings.
        section: Dataclass of its section.
        feed: Factory of the feed.
        decoder: Factory of the decoder.
        framer: Factory of the framer of plain bytes, where the interface is a line.
        ahead: Largest number of frames that wait for the agent.
        is_retold: True if the medium delivers everything again after a restart.
        names: Meaning of each name of the interface; None reads ``streams.toml`` and ``map``.
    """

    name: str
    section: type[S]
    feed: Callable[[S], FramedLink]
    decoder: Callable[[S], Decoder]
    framer: Callable[[], Framer] | None = None
    ahead: int = 512
    is_retold: bool = False
    names: Callable[[S], Mapping[str, StreamName]] | None = None

    def __call__(self, table: Mapping[str, Any]) -> ThreadedSource:
        """Build a source from its section of a configuration; nothing is opened yet.

        Raises:
            Failure: A missing, unknown or invalid key.
        """
        section = from_table(self.section, table, f"source {self.name}")
        return self._with(section, self.feed(section))

    def replayed(self, table: Mapping[str, Any], path: Path) -> ThreadedSource:
        """Build the same source on a recording of it.

        Raises:
            Failure: As above.
        """
        keys = {"url": "tcp://recorded:1"} if "url" in self.section.__dataclass_fields__ else {}
        section = from_table(self.section, keys | dict(table), "source replay")
        framer = None if self.framer is None else self.framer()
        return replace(self._with(section, RecordedFeed(path, self.name, framer)), is_finite=True)

    def _with(self, section: S, feed: FramedLink) -> ThreadedSource:
        table = (
            names(self.name, section.map, f"source {self.name}")
            if self.names is None
            else self.names(section)
        )
        step = 0.0 if section.step is None else seconds(section.step)
        gap = 0.0 if section.max_gap is None else seconds(section.max_gap)
        normaliser = Normaliser(table, step, gap, section.max_power, section.rollover)
        decode = self.decoder(section)
        made = ThreadedSource(self.name, feed, decode, normaliser, ahead=self.ahead)
        return replace(made, is_retold=self.is_retold)


def _p1_feed(section: P1Section) -> FramedLink:
    return ListeningFeed(SourceAddress.parse(section.url), TelegramFramer())


def _p1_decoder(section: P1Section) -> Decoder:
    hours = section.utc_offset
    return lambda frame: telegram(frame, hours)


def _modbus_feed(section: ModbusSection) -> FramedLink:
    from edge_sdk.sources.modbus import PollingFeed  # noqa: PLC0415 - memory

    if bool(section.point) == section.sunspec:
        raise ConfigError("source modbus: needs either [[source.point]] or sunspec = true")
    address = SourceAddress.parse(section.url)
    is_serial = section.framing == "rtu" or address.scheme == "serial"
    interval, timeout = seconds(section.poll_interval), seconds(section.timeout)
    return PollingFeed(address, section.unit_id, is_serial, interval, timeout, section.point)


def _modbus_decoder(section: ModbusSection) -> Decoder:
    return lambda frame: block(frame, section.point, f"{section.unit_id}")


def _pm_feed(section: PmSection) -> FramedLink:
    from edge_sdk.sources.drop_folder import DropFolder  # noqa: PLC0415 - memory

    if not section.folder:
        raise ConfigError(
            "source pm3gpp: 'folder' is missing: the folder that the element manager writes to"
        )
    interval, max_age = seconds(section.poll_interval), seconds(section.max_age)
    return DropFolder(Path(section.folder), section.pattern, interval, max_age)


def _pm_decoder(section: PmSection) -> Decoder:
    from edge_sdk.sources.pm3gpp import decoder  # noqa: PLC0415 - memory, and expat

    table = names("pm3gpp", section.map, "source pm3gpp")
    counters = {name: row.kind == "interval" for name, row in table.items()}
    return decoder(counters, section.objects)


def _ocpp_feed(section: OcppSection) -> FramedLink:
    if not section.spool:
        raise ConfigError(
            "source ocpp: 'spool' is missing: the folder of the OCPP proxy's recordings"
        )
    return SpoolReader(Path(section.spool), "ocpp")


def _ocpp_decoder(section: OcppSection) -> Decoder:
    from edge_sdk.sources.ocpp import OcppDecoder  # noqa: PLC0415 - memory

    if not section.ocmf_key:
        return OcppDecoder()
    from edge_sdk.sources.ocmf import verifier  # noqa: PLC0415 - cryptography

    return OcppDecoder(verifier(Path(section.ocmf_key)))


def _http_feed(section: HttpSourceSection) -> FramedLink:
    from edge_sdk.sources.http_poll import HttpPoll, HttpService  # noqa: PLC0415 - http.client

    interval = seconds(section.poll_interval)
    if interval < 1.0:
        raise ConfigError(f"source http: poll_interval: {section.poll_interval} is below 1s")
    service = HttpService(section.url, section.ca_file, section.token_file, section.insecure)
    return HttpPoll(service, interval, seconds(section.timeout))


def _mqtt_feed(section: MqttSourceSection) -> FramedLink:
    from edge_sdk.sources.mqtt_feed import MqttFeed  # noqa: PLC0415 - memory

    topic = section.topic
    if topic.startswith("gf/"):
        raise ConfigError("source mqtt: topic: 'gf/...' belongs to the fleet's protocol")
    name = hashlib.sha256(topic.encode()).hexdigest()[:12]
    try:
        broker = Broker(
            url=section.url,
            client_id=section.client_id or f"gridfed-source-{name}-{secrets.token_hex(4)}",
            ca_file=section.ca_file,
            cert_file=section.cert_file,
            key_file=section.key_file,
            protocol=section.protocol,
            username=section.username or None,
            password=_password(section.password_file),
            session_expiry=0,
            insecure=section.insecure,
        )
    except LinkError as error:
        raise ConfigError(f"source mqtt: {error}") from error
    has_times = all(value.time for value in section.value)
    return MqttFeed(broker, topic, takes_retained=section.retained or has_times)


def _password(path: Path | None) -> str | None:
    try:
        return None if path is None else path.read_text("utf-8").partition("\n")[0]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"source mqtt: password_file: cannot read {str(path)!r}") from error


def _json_decoder(section: JsonSourceSection) -> Decoder:
    return json_decoder(section.value)


def _json_names(section: JsonSourceSection) -> Mapping[str, StreamName]:
    return names_of(section.value)


P1 = Interface("p1", P1Section, _p1_feed, _p1_decoder, TelegramFramer)

MODBUS = Interface("modbus", ModbusSection, _modbus_feed, _modbus_decoder)

PM3GPP = Interface("pm3gpp", PmSection, _pm_feed, _pm_decoder, ahead=16)

OCPP = Interface("ocpp", OcppSection, _ocpp_feed, _ocpp_decoder, is_retold=True)

HTTP = Interface("http", HttpSourceSection, _http_feed, _json_decoder, ahead=16, names=_json_names)

MQTT = Interface("mqtt", MqttSourceSection, _mqtt_feed, _json_decoder, names=_json_names)

INTERFACES: dict[str, Interface[Any]] = {
    "p1": P1,
    "modbus": MODBUS,
    "http": HTTP,
    "mqtt": MQTT,
    "ocpp": OCPP,
    "pm3gpp": PM3GPP,
}
"""Types that can also be replayed from a recording."""


def replay(table: Mapping[str, Any]) -> ThreadedSource:
    """Build a source from a recording: ``path``, its type in ``recorded_type``, and the keys of that type.

    Raises:
        Failure: A missing, unknown or invalid key, or a missing file.
    """
    keys = {key: value for key, value in table.items() if key not in ("recorded_type", "path")}
    kind, path = str(table.get("recorded_type", "")), Path(str(table.get("path", "")))
    if kind not in INTERFACES:
        known = ", ".join(sorted(INTERFACES))
        raise ConfigError(f"source replay: recorded_type: unknown {kind!r}; known: {known}")
    if not path.is_file():
        raise ConfigError(f"source replay: path: no such file: {str(path)!r}")
    return INTERFACES[kind].replayed(keys, path)
