"""Section ``[parent]`` of a site, its checks, and the record of the parent's model in the site's run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from aggregator.config.sections import AggregatorConfig
from aggregator.methods.base.round_machine import Rounds
from aggregator.methods.base.wrappers import WrappedState
from edge_sdk.app.schema import Between, Matches
from edge_sdk.app.settings import Duration, SettingsError
from edge_sdk.protocol.contract.method import Closed, Effects, Event, Half, ParentModel

SiteId = Annotated[str, Matches(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")]
ParentFleet = Annotated[str, Matches(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")]
RoundCount = Annotated[int, Between(1, 1_000_000)]
Count = Annotated[int, Between(1, 2**31 - 1)]

# methods of a site: each keeps one common model and nothing else of the parent's concern
SITE_METHODS = ("fedsgd", "fedavg", "fedprox", "fedavgm", "fedadam", "fedatt", "fedgru", "fedntp")
# methods of a parent: each asks with a common model, and is answered with a difference or weights
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
    rounds: RoundCount = 1  # rounds of this site between two models of the parent
    patience: Duration = "1h"  # wait for the next model; then the site continues alone
    max_count: Count = 100  # largest number of devices that the parent receives
    reply: Duration = "10s"  # first wait for a reply of the parent; doubles up to 90 times this
    require_encryption: bool = False  # announce a key, refuse clear messages to this site alone


@dataclass(frozen=True, slots=True, eq=False)
class SiteState(WrappedState):
    """State of a site's half."""

    # the model received last from the parent, with its numbers, the ``rounds`` closed since and the
    # largest ``count`` of updates in one; empty before the first (``ParentRecord``)
    parent: Mapping[str, Any] = field(default_factory=dict)


def following_parent(half: Half[Any]) -> Half[SiteState]:
    """Return a half that records which model of the parent its rounds began with."""

    def apply(state: SiteState, event: Event) -> tuple[SiteState, Effects]:
        inner, effects = half.apply(state.inner, event)
        if inner is state.inner:
            return state, effects
        parent, has_moved = state.parent, inner.version > state.inner.version
        if has_moved and isinstance(event, ParentModel):
            names = ("run", "number", "attempt", "step", "version")
            parent = {name: getattr(event, name) for name in names}
            parent |= {"w": event.vector, "rounds": 0, "count": 0}
        elif has_moved and parent:
            closed = next(effect for effect in effects if isinstance(effect, Closed))
            most = max(parent["count"], len(closed.report["cohort"]))
            parent = {**parent, "rounds": parent["rounds"] + 1, "count": most}
        return SiteState(inner, parent), effects

    return Half(lambda w: SiteState(half.init(w)), apply, lambda state: half.model(state.inner))


def check_parent(config: AggregatorConfig, rounds: Rounds) -> None:
    """Raise SettingsError, with key, value and remedy, for a run that cannot follow a parent."""
    parent, run, enough = config.section("parent"), config.run, rounds.enough
    if run.method not in SITE_METHODS:
        why = f"{run.method!r} cannot follow a parent; methods of a site: {', '.join(SITE_METHODS)}"
        raise _wrong(config, "run.method", why, hint="use one of them, or remove [parent]")
    for key, is_set in (("rounds", run.rounds is not None), ("rate_stages", bool(run.rate_stages))):
        if is_set:
            why = "expected none beside [parent], whose run decides how long the site's lasts"
            raise _wrong(config, f"run.{key}", why, hint="remove it")
    if enough < 2:
        key = "run.quorum" if run.min_updates is None else "run.min_updates"
        why = f"expected at least 2 beside [parent], got {enough}"
        hint = "a difference made from one device's update would be that device's"
        raise _wrong(config, key, why, hint=hint)
    if parent.fleet == config.fleet:
        why = f"{config.fleet!r} is this aggregator's own fleet; expected that of its parent"
        raise _wrong(config, "parent.fleet", why)


def _wrong(config: AggregatorConfig, key: str, why: str, *, hint: str = "") -> SettingsError:
    return SettingsError(f"{config.file.name}: {key}: {why}", hint=hint)
