"""Bind the settings of the broker connection."""

from __future__ import annotations

from typing import Any

from aggregator.config.sections import AggregatorConfig
from edge_sdk.app.settings import SettingsError, seconds
from edge_sdk.wire.errors import LinkError
from edge_sdk.wire.link.client_names import client_id_of
from edge_sdk.wire.protocol.topics import AGGREGATOR


def broker_of(config: AggregatorConfig, url: str) -> Any:  # noqa: ANN401 - ``edge_sdk.wire.link.broker_options.Broker``
    """Return the link's settings for a broker URL.

    Raises:
        SettingsError: The settings contradict each other.
    """
    from edge_sdk.wire.link.broker_options import (  # noqa: PLC0415 - TLS is loaded when a link is wanted
        LARGEST_UPDATE,
        OVERHEAD,
        Broker,
    )

    section = config.broker
    try:
        return Broker(
            url=url,
            client_id=client_id_of(config.fleet, AGGREGATOR, section.cert_file),
            ca_file=section.ca_file,
            cert_file=section.cert_file,
            key_file=section.key_file,
            protocol=section.protocol,
            keepalive=section.keepalive,
            max_packet=LARGEST_UPDATE + OVERHEAD,
            session_expiry=604_800,
            reconnect_max=seconds(section.reconnect_max),
            insecure=section.insecure,
        )
    except LinkError as error:
        raise SettingsError(f"{config.file.name}: broker: {error}") from error
