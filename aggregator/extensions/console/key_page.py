"""Collect the announced keys and the announcements of the root that end, for the console."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aggregator.config import AggregatorConfig
from aggregator.extensions.console.fleet_summary import Notice
from aggregator.operations.operator_alerts import offline
from aggregator.operations.signing_keys import HORIZON
from aggregator.store.opener import open_store
from edge_sdk.app.clock import DAY, SystemClock
from edge_sdk.errors import Refused
from edge_sdk.protocol import topics
from edge_sdk.protocol.codec import decode
from edge_sdk.protocol.envelope import unproved
from edge_sdk.protocol.keys import KeyFileError, kid_of
from edge_sdk.protocol.messages import BundleMessage, KeysMessage
from edge_sdk.protocol.root_keys import read_root


@dataclass(frozen=True, slots=True)
class SignedByRoot:
    """A key of the aggregator, or a bundle, that the root has announced."""

    kind: str  # ``key`` or ``bundle``
    name: str  # id of the key, or name and version of the bundle
    run: str  # name of the run; empty for a key, and for the run that is announced to all
    begins: int  # time from which it is valid, Unix milliseconds; 0 if it has none
    ends: int  # time from which devices refuse it, Unix milliseconds; 0 if it has none

    def days_left(self, now: int) -> int | None:
        """Return the whole days until its end; None without an end.

        >>> SignedByRoot("key", "00ff", "", 0, 3 * DAY).days_left(DAY + 1)
        1
        """
        return (self.ends - now) // DAY if self.ends else None


def key_values(config: AggregatorConfig, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys in use, the root's announcements, and the files that expire, by the daemon's status."""
    now = SystemClock().wall()
    try:
        root = read_root(config.root_public).name
    except KeyFileError as error:
        root = str(error)
    return {
        "root": root,
        "signed": [(one, one.days_left(now)) for one in signed_by_root(config)],
        "near": HORIZON // DAY,
        "paths": {"root": config.root_public, "signing": config.signing_key},
        "files": document.get("certificates") or offline(config),
        "is_daemon_up": bool(document),
        "configuration": document.get("configuration", ""),
        "checks": document.get("checks", {}),
    }


def signed_by_root(config: AggregatorConfig) -> list[SignedByRoot]:
    """Return the root's announcements for the fleet and its runs."""
    found: list[SignedByRoot] = []
    with open_store(config.database, read_only=True) as store:
        if payload := store.announcements.get(topics.common(config.fleet, KeysMessage.kind)):
            found += _keys(payload)
        for run in config.runs:
            topic = topics.common(config.fleet, BundleMessage.kind, topics.audience(run.name))
            if payload := store.announcements.get(topic):
                found += _bundle(payload, run.name)
    return found


def _keys(payload: bytes) -> Iterator[SignedByRoot]:
    try:
        keys = decode(KeysMessage, unproved(payload))
    except Refused:  # another version's
        return
    for key, begins, ends in zip(keys.sign, keys.from_, keys.until, strict=True):
        yield SignedByRoot("key", kid_of(key).hex(), "", begins, ends)


def _bundle(payload: bytes, run: str) -> Iterator[SignedByRoot]:
    try:
        bundle = decode(BundleMessage, unproved(payload))
    except Refused:
        return
    name = f"{bundle.name} version {bundle.version}"
    yield SignedByRoot("bundle", name, run, 0, bundle.expires or 0)


def root_notices(found: Sequence[SignedByRoot], now: int) -> list[Notice]:
    """Return the signatures of the root that expire within ``HORIZON``.

    Args:
        now: Present time, Unix milliseconds.

    >>> old, new = (SignedByRoot("key", name, "", 0, end) for name, end in (("a", DAY), ("b", 400 * DAY)))
    >>> root_notices([old, new], 0)
    []
    >>> found = root_notices([SignedByRoot("bundle", "load version 2", "", 0, 9 * DAY)], DAY)
    >>> [one.text.partition(".")[0] for one in found]
    ['The announcement of load version 2 ends in 8 days']
    """
    ends = [one.ends for one in found if one.kind == "key"]
    judged = [one for one in found if one.kind != "key" or one.ends == max(ends)]
    return [
        Notice(
            f"The {'announcement of ' if one.kind == 'bundle' else 'aggregator key '}{one.name} ends in "
            f"{one.days_left(now)} days. Sign it again with the root key: gridfed-aggregator announce",
            "/keys",
        )
        for one in judged
        if one.ends and one.ends - now <= HORIZON
    ]
