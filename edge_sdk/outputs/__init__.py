"""Write forecasts, and the agent's metrics, to files, HTTP and MQTT; none of them can stop the agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from edge_sdk.app.settings import from_table, seconds
from edge_sdk.errors import ConfigError
from edge_sdk.outputs.base import AgentReport, OutputSink
from edge_sdk.outputs.file import FileSink
from edge_sdk.outputs.fleet import FleetOutput
from edge_sdk.outputs.mqtt import MqttTopics, open_mqtt
from edge_sdk.outputs.sections import (
    FileOutputSection,
    FleetOutputSection,
    HttpOutputSection,
    MqttOutputSection,
    OutputSection,
)
from edge_sdk.outputs.threaded_output import ThreadedOutput
from edge_sdk.wire.errors import LinkError
from edge_sdk.wire.link.broker_options import Broker

__all__ = [
    "FLEET",
    "OUTPUTS",
    "AgentReport",
    "FleetOutput",
    "OutputSink",
    "ThreadedOutput",
    "open_output",
]


def _file(section: FileOutputSection, where: str, device: str) -> Callable[[], OutputSink]:
    del where, device
    return partial(
        FileSink,
        section.path,
        section.format,
        section.mode == "append",
        section.max_bytes,
        section.keep,
    )


def _http(section: HttpOutputSection, where: str, device: str) -> Callable[[], OutputSink]:
    del where, device
    from edge_sdk.outputs.http import HttpSink  # noqa: PLC0415 - http.server: only where it serves

    return partial(HttpSink, *section.address)


def _mqtt(section: MqttOutputSection, where: str, device: str) -> Callable[[], OutputSink]:
    try:
        broker = Broker(
            url=section.url,
            client_id=f"gridfed-forecast-{device}",
            ca_file=section.ca_file,
            cert_file=section.cert_file,
            key_file=section.key_file,
            protocol=section.protocol,
            username=section.username or None,
            password=_password(section.password_file, where),
            session_expiry=0,
            reconnect_max=60.0,
            insecure=section.insecure,
        )
    except LinkError as error:
        raise ConfigError(f"{where}: {error}") from error
    topics = MqttTopics.of(device, section.topic, section.discovery)
    return partial(open_mqtt, broker, topics)


def _password(path: Path | None, where: str) -> str | None:
    """Return the first line of a file.

    Raises:
        ConfigError: It cannot be read.
    """
    if path is None:
        return None
    try:
        return path.read_text("utf-8").partition("\n")[0]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}.password_file: cannot read {str(path)!r}: {error}") from error


_Maker = Callable[[Any, str, str], Callable[[], OutputSink]]

OUTPUTS: Mapping[str, tuple[type[OutputSection], _Maker]] = {
    "file": (FileOutputSection, _file),
    "http": (HttpOutputSection, _http),
    "mqtt": (MqttOutputSection, _mqtt),
}
"""Section and maker of every type of output with a thread of its own."""

FLEET = "fleet"
"""Type of the output that the client itself sends."""


def open_output(
    section: Mapping[str, Any], number: int, device: str, *, is_private: bool = False
) -> ThreadedOutput | FleetOutput:
    """Create one configured output; nothing of it is opened yet.

    Args:
        section: ``[[output]]`` section of the configuration, with absolute paths.
        number: Its number, for messages.
        device: Id of the device.
        is_private: True if a privacy mechanism is configured.

    Raises:
        Failure: An unknown type, or invalid keys.
    """
    where, kind = f"output[{number}]", str(section.get("type", ""))
    if kind == FLEET:
        return _fleet(from_table(FleetOutputSection, section, where), number, is_private=is_private)
    if kind not in OUTPUTS:
        known = ", ".join((*OUTPUTS, FLEET))
        raise ConfigError(f"{where}.type: unknown {kind!r}; known: {known}")
    cls, maker = OUTPUTS[kind]
    settings = from_table(cls, section, where)
    make = maker(settings, where, device)
    return ThreadedOutput(f"{number} {kind}", seconds(settings.interval), make)


def _fleet(section: FleetOutputSection, number: int, *, is_private: bool) -> FleetOutput:
    if is_private and not section.uncovered:
        raise ConfigError(
            f"output[{number}]: a forecast is computed from readings without noise, so sending it voids the "
            "claim of [privacy]",
            hint="remove the output, or set uncovered = true",
        )
    return FleetOutput(f"{number} {FLEET}", seconds(section.interval))
