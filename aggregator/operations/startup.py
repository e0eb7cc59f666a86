"""Make the outer parts of a daemon from its configuration: limits, broker and link."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from aggregator.config import AggregatorConfig, broker_of
from aggregator.ingress.admission_context import WelcomeTerms
from aggregator.ingress.message_bodies import BodyCodec, MessageBodies
from aggregator.ingress.rate_limits import RateLimits
from aggregator.ingress.uploads import UploadCapacity
from aggregator.store.store import Store
from edge_sdk.app.cli import fields
from edge_sdk.app.extensions import ExtensionEntry
from edge_sdk.app.settings import SettingsError
from edge_sdk.link.event_loop import Poller
from edge_sdk.link.transport import Transport
from edge_sdk.protocol.messages import BODY_LIMIT, CHUNK_LIMIT
from edge_sdk.protocol.outbox_state import CAPS

logger = logging.getLogger(__name__)

MQTT_PORT = 1883  # of a broker started by this process: fixed, so that devices find it


def terms_of(config: AggregatorConfig) -> WelcomeTerms:
    """Return the limits per device: hourly an eighth of the daily quota, at least one chunk.

    A single download may be larger: the largest bundle and the largest model, after data loss.
    """
    admission = config.admission
    return WelcomeTerms(
        inline=admission.max_inline_bytes,
        single=0 if admission.workers else admission.max_single_bytes,
        quota=admission.daily_bytes,
        hold=admission.max_pending_updates,
        caps=CAPS,
        quotas=RateLimits(
            control=admission.messages_per_minute,
            volume=max(admission.daily_bytes // 8, 2 * CHUNK_LIMIT),
            download=max(admission.daily_bytes // 8, 2 * BODY_LIMIT),
            refill=admission.daily_bytes / 8 / 3600,
            downlink=config.pacing.broadcast_bytes_per_second,
        ),
        room=UploadCapacity(in_flight=admission.max_in_flight_bytes),
    )


def bodies_of(
    config: AggregatorConfig,
    store: Store,
    is_signed_by: Callable[[str, bytes], bool],
    before: MessageBodies | None = None,
) -> MessageBodies:
    """Return the bodies of the fleet's messages, as the configuration and the store demand.

    Args:
        is_signed_by: Returns whether a device may sign with the key of this id.
        before: Those in use, which follow the configuration from now on; None: new ones.
    """
    found = before or MessageBodies(config.fleet)
    for entry in config.index.having("bodies"):
        is_needed = entry.is_configured(config.tables) or store.has_rows(entry.row["rows"])
        codec = partial(_codec, entry, config, store, is_signed_by)
        found.follow(codec, is_needed=is_needed)
    return found


def _codec(entry: ExtensionEntry, *args: Any) -> BodyCodec:  # noqa: ANN401 - those of ``bodies_of``
    codec: BodyCodec = entry.load("bodies")(*args)
    return codec


def started_broker(config: AggregatorConfig) -> Any:  # noqa: ANN401 - a BrokerProcess, imported late
    """Return a broker that an extension finds or starts on this machine; None if its address is configured.

    Raises:
        SettingsError: No extension starts one.
    """
    found, kind, url = None, "configured", config.broker.url
    if url == "auto":
        entry = next(iter(config.index.having("broker")), None)
        if entry is None:
            raise SettingsError(
                f"{config.file.name}: broker.url: auto: no extension starts a broker",
                hint="configure the address of a broker",
            )
        found = entry.load("broker")(url, folder=config.state / "broker", port=MQTT_PORT)
        kind, url = found.kind, found.url
    logger.info("broker selected %s", fields(kind=kind, url=url))
    return found


def link_to(config: AggregatorConfig, found: Any, poller: Poller | None = None) -> Transport:  # noqa: ANN401 - as above
    """Return a link to the broker, served by a poller of its own unless one is given."""
    from edge_sdk.link.mqtt import MqttLink  # noqa: PLC0415 - only where no link was given

    url = config.broker.url
    if found is not None:
        url = found.url_v4 if config.broker.protocol == 4 else found.url
    link: Transport = MqttLink(broker_of(config, url), poller=poller)
    return link
