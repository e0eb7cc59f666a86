"""Section ``[parent]``: a site that takes part in its parent's fleet as one device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from edge_sdk.app.schema import Between, Matches
from edge_sdk.app.settings import Duration

SiteId = Annotated[str, Matches(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")]
ParentFleet = Annotated[str, Matches(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")]
Rounds = Annotated[int, Between(1, 1_000_000)]
Count = Annotated[int, Between(1, 2**31 - 1)]

SITE_METHODS = (
    "fedsgd",
    "fedavg",
    "fedprox",
    "fedavgm",
    "fedadam",
    "fedatt",
    "fedgru",
    "fedntp",
)
"""Methods of a site: each keeps one common model and nothing else of the parent's concern."""

PARENT_METHODS = (
    "fedavg",
    "fedprox",
    "fedavgm",
    "fedadam",
    "fedatt",
    "fedgru",
    "fedntp",
    "fedasync",
    "fedbuff",
)
"""Methods of a parent: each asks with a common model, and is answered with a difference or weights."""


@dataclass(frozen=True, slots=True)
class ParentBrokerSection:
    """Broker of the parent's fleet. Plain ``mqtt://`` is for loopback only."""

    url: str  # mqtts://host:8883
    ca_file: Path | None = None  # authority that signed the broker's certificate
    cert_file: Path | None = None  # certificate of this site, as of a device
    key_file: Path | None = None  # private key of that certificate
    protocol: Literal[4, 5] = 5  # MQTT 5, or 4 for 3.1.1
    keepalive: Annotated[int, Between(5, 65535)] = 60  # seconds without traffic before a ping
    reconnect_max: Duration = "10m"  # longest wait between two connection attempts
    insecure: bool = False  # allow mqtt:// to another host


@dataclass(frozen=True, slots=True)
class ParentSection:
    """Fleet of a parent's aggregator, in which this aggregator is one device: a site."""

    id: SiteId  # id of this site in the parent's fleet
    fleet: ParentFleet  # the parent's fleet
    broker: ParentBrokerSection
    root: Path  # root public key of the parent's operator: 64 hex digits
    key: Path | None = None  # this site's signing key for the parent; unset: parent.key in state
    rounds: Rounds = 1  # rounds of this site between two models of the parent
    patience: Duration = "1h"  # wait for the next model; then the site continues alone
    max_count: Count = 100  # largest number of devices that the parent receives
    reply: Duration = "10s"  # first wait for a reply of the parent; doubles up to 90 times this
    require_encryption: bool = False  # announce a key, refuse clear messages to this site alone
