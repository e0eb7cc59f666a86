"""Publish the forecasts of feeders to an MQTT broker, retained: an operator's own, never the fleet's topics."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from urllib.parse import quote

from aggregator.extensions.feeder.feeder import FeederForecast
from aggregator.extensions.feeder.settings import FeederMqttSection
from edge_sdk.errors import ConfigError, LinkError
from edge_sdk.link.broker_options import Broker
from edge_sdk.link.transport import LinkDown, Transport

PATIENCE = 20.0
"""Seconds in which the broker must have confirmed all."""


def open_link(section: FeederMqttSection, fleet: str) -> Transport:
    """Return a link to the broker.

    Raises:
        ConfigError: The password cannot be read.
        LinkError: The settings cannot work together.
    """
    from edge_sdk.link.mqtt import MqttLink  # noqa: PLC0415 - loads paho

    try:
        password = (
            section.password_file.read_text("utf-8").partition("\n")[0]
            if section.password_file is not None
            else None
        )
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"feeder.mqtt.password_file: {error}") from error
    broker = Broker(
        url=section.url,
        client_id=f"gridfed-feeder-{fleet}",
        ca_file=section.ca_file,
        cert_file=section.cert_file,
        key_file=section.key_file,
        username=section.username or None,
        password=password,
        session_expiry=0,
    )
    return MqttLink(broker)


def publish(
    link: Transport,
    topic: str,
    forecasts: Sequence[FeederForecast],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Publish each forecast as ``TOPIC/FEEDER/forecast``, retained, and wait for the confirmations.

    Raises:
        LinkError: The connection was refused or lost, or nothing was confirmed in time.
    """
    end, waiting = clock() + PATIENCE, list(forecasts)
    most = 0
    link.open()
    try:
        while waiting or link.room() < most or not link.is_up:
            if clock() > end:
                raise LinkError(f"{len(waiting)} forecasts not published within {PATIENCE:g} s")
            for event in link.poll(0.2):
                if isinstance(event, LinkDown):
                    raise LinkError(event.why)
            most = max(most, link.room())
            while waiting and _put(link, topic, waiting[0]):
                waiting.pop(0)
    finally:
        link.close()


def _put(link: Transport, topic: str, one: FeederForecast) -> bool:
    name = quote(one.feeder, safe="") or "_all"
    payload = json.dumps(one.document()).encode()
    return link.is_up and link.publish(f"{topic}/{name}/forecast", payload, retain=True)
