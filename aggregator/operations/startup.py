"""Make the outer parts of a daemon from its configuration: limits, broker and link."""

from __future__ import annotations

import logging
from typing import Any

from aggregator.config import AggregatorConfig, broker_of
from aggregator.ingress.admission_context import WelcomeTerms
from aggregator.ingress.rate_limits import RateLimits
from aggregator.ingress.uploads import UploadCapacity
from edge_sdk.app.cli import fields
from edge_sdk.wire.link.event_loop import Poller
from edge_sdk.wire.link.transport import Transport
from edge_sdk.wire.protocol.messages import BODY_LIMIT, CHUNK_LIMIT
from edge_sdk.wire.protocol.outbox_state import CAPS, SCORES

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
        caps=tuple(word for word in CAPS if config.scores.collect or word != SCORES),
        quotas=RateLimits(
            control=admission.messages_per_minute,
            volume=max(admission.daily_bytes // 8, 2 * CHUNK_LIMIT),
            download=max(admission.daily_bytes // 8, 2 * BODY_LIMIT),
            refill=admission.daily_bytes / 8 / 3600,
            downlink=config.pacing.broadcast_bytes_per_second,
        ),
        room=UploadCapacity(in_flight=admission.max_in_flight_bytes),
    )


def started_broker(config: AggregatorConfig) -> Any:  # noqa: ANN401 - a BrokerProcess, imported late
    """Return the configured broker, or one that was started on this machine."""
    from aggregator.brokers import broker_process  # noqa: PLC0415 - only where no link was given

    port = MQTT_PORT if config.broker.url == "auto" else 0
    found = broker_process.find(config.broker.url, folder=config.state / "broker", port=port)
    logger.info("broker selected %s", fields(kind=found.kind, url=found.url))
    return found


def link_to(config: AggregatorConfig, found: Any, poller: Poller | None = None) -> Transport:  # noqa: ANN401 - as above
    """Return a link to the broker, served by a poller of its own unless one is given."""
    from edge_sdk.wire.link.mqtt import MqttLink  # noqa: PLC0415 - only where no link was given

    url = found.url_v4 if config.broker.protocol == 4 else found.url
    link: Transport = MqttLink(broker_of(config, url), poller=poller)
    return link
