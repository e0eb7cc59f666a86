"""Build the retained announcements: keys and bundle signed by the root, model and time by us.

Pure functions: they return messages and payloads, and publish and save nothing. Serials are
arguments, because they must never repeat and only the store has the last one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from aggregator.config import BoundRun
from aggregator.methods.base.wrappers import STEP
from edge_sdk.protocol import messages, topics
from edge_sdk.protocol.codec import encode
from edge_sdk.protocol.contract.method import Task
from edge_sdk.protocol.envelope import AGGREGATOR, ALL, ROOT, digest, ref, seal
from edge_sdk.protocol.keys import Signer
from edge_sdk.protocol.model_step import model_body, step_body
from edge_sdk.protocol.root_keys import RootKeys

# validity of what the root signs in milliseconds: long enough for a device offline for a year
OVERLAP = 400 * 86_400_000
# validity of a manifest in milliseconds; it is signed again after half of it
VALIDITY = 14 * 86_400_000
Phase = Literal["train", "pause", "stop"]

# end of the round in a manifest of phase ``pause`` that announces the time between two rounds
BETWEEN = 0


@dataclass(frozen=True, slots=True)
class Publication:
    """One retained message; an empty payload clears its topic."""

    topic: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Ends:
    """Signer, fleet and audience of the aggregator's envelopes."""

    fleet: str
    signer: Signer
    audience: str = ALL  # devices of a run, or all
    also: tuple[Signer, ...] = ()  # further keys of the root, which sign what the root sends

    def to_all(self, message: messages.ProtocolMessage, sender: str = AGGREGATOR) -> bytes:
        """Seal a message for the whole audience."""
        return seal(
            encode(message),
            kind=message.kind,
            sender=sender,
            recipient=self.audience,
            fleet=self.fleet,
            signer=self.signer,
            also=self.also,
        )


@dataclass(frozen=True, slots=True)
class Roles:
    """Keys that a list of keys names beside those of the aggregator."""

    # root from now on, while devices change over to it; None while it stays as it is
    root: RootKeys | None = None
    # raw public keys that may sign bundles and rollouts in place of the root
    bundle: tuple[bytes, ...] = ()
    # raw public keys that alone may sign models and their log; empty: the aggregator's
    model: tuple[bytes, ...] = ()
    # authorities of TLS certificates, DER; empty: devices keep those that they have
    ca: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Body:
    """Content of one version of the common model, as devices download it."""

    version: int
    data: bytes

    @property
    def digest(self) -> bytes:
        """Return the SHA-256 of the content body (32 bytes)."""
        return digest(self.data)

    @property
    def id(self) -> bytes:
        """Return the 16-byte id in its parts and in download requests."""
        return ref(self.digest)


def keys(
    root: Ends,
    online: bytes,
    *,
    serial: int,
    now: int,
    encryption: bytes | None = None,
    also: Mapping[bytes, int] | None = None,
    roles: Roles | None = None,
) -> Publication:
    """Announce the online key, signed by the root.

    Args:
        online: Raw public key that may sign as ``_agg``.
        serial: Larger than every previous one.
        now: Unix milliseconds; the key is valid from a day earlier, for slow clocks.
        encryption: Raw X25519 key to which devices encrypt, or None.
        also: Further keys that may sign as ``_agg`` during a rotation, each with the end of its
            validity, Unix milliseconds.
        roles: Keys of further roles; none if left out.
    """
    ends = {online: now + OVERLAP, **(also or {})}
    roles = roles or Roles()
    listed = tuple(dict.fromkeys((online, *ends, *roles.model)))
    message = messages.KeysMessage(
        serial=serial,
        sign=listed,
        open=() if encryption is None else (encryption,),
        from_=(max(0, now - 86_400_000),) * len(listed),
        until=tuple(ends.get(key, now + OVERLAP) for key in listed),
        min_wire=messages.WIRE,
        roots=() if roles.root is None else roles.root.keys,
        root_min=1 if roles.root is None else roles.root.threshold,
        bundle=roles.bundle,
        model=roles.model,
        ca=roles.ca,
    )
    return Publication(topics.common(root.fleet, "keys"), root.to_all(message, ROOT))


def bundle_message(
    run: BoundRun, *, number: int, serial: int, now: int | None = None
) -> messages.BundleMessage:
    """Build the announcement of the bundle and the method of run ``number``.

    Args:
        serial: Larger than every previous one.
        now: Unix milliseconds; devices refuse it 400 days later. None for never.
    """
    manifest = run.bundle.manifest
    return messages.BundleMessage(
        serial=serial,
        name=manifest.name,
        version=manifest.version,
        digest=run.bundle.digest,
        size=len(run.bundle.archive),
        spec=run.spec.digest,
        sdk=manifest.min_sdk,
        method=run.config.run.method,
        run=number,
        shared=run.shared,
        seal=tuple(sorted(run.config.encrypted_kinds)),
        encs=run.limits.encs,
        expires=None if now is None else now + OVERLAP,
    )


def bundle(root: Ends, message: messages.BundleMessage) -> Publication:
    """Announce the bundle, signed by the root."""
    return Publication(
        topics.common(root.fleet, "bundle", root.audience), root.to_all(message, ROOT)
    )


def body(run: BoundRun, task: Task, *, number: int) -> Body:
    w = task.arrays[run.ask.down[0] if run.ask.down else "w"]
    return Body(task.base, model_body(run=number, version=task.base, spec=run.spec.digest, w=w))


def step(run: BoundRun, task: Task, *, number: int) -> Body | None:
    """Encode the step from the last version to the model of a task; None without one."""
    found = task.arrays.get(STEP)
    if found is None:
        return None
    spec, blob = run.spec.digest, np.asarray(found, np.uint8).tobytes()
    return Body(task.base, step_body(run=number, version=task.base, spec=spec, blob=blob))


def slots(
    ends: Ends, content: Body, *, chunk: int = messages.CHUNK_LIMIT, first: int = 0
) -> tuple[Publication, ...]:
    """Split a content body into retained parts, from a slot on."""
    pieces = (
        messages.PartMessage(id=content.id, i=i, blob=content.data[i * chunk : (i + 1) * chunk])
        for i in range(messages.count_of(len(content.data), chunk))
    )
    return tuple(
        Publication(topics.part(ends.fleet, first + part.i, ends.audience), ends.to_all(part))
        for part in pieces
    )


def cleared(fleet: str, kept: int, before: int, audience: str = ALL) -> tuple[Publication, ...]:
    """Clear the slots that a longer model leaves behind.

    >>> [p.topic for p in cleared("north", kept=1, before=3)]
    ['gf/1/north/_all/part/1', 'gf/1/north/_all/part/2']
    """
    return tuple(Publication(topics.part(fleet, i, audience), b"") for i in range(kept, before))


@dataclass(frozen=True, slots=True)
class Opening:
    """Fields of a manifest besides the task; saved, so that a restart announces the same."""

    serial: int
    until: int  # deadline of the round, server time in milliseconds
    spread: int  # window of the random delay, milliseconds
    inline: int  # largest body sent without an offer, bytes
    chunk: int = messages.CHUNK_LIMIT  # size of one part, bytes
    ahead: int = 0  # chunks of an update that may follow its first offer without a grant
    single: int = 0  # largest body of an update that may go in one message, bytes; 0 for none
    # the step from the last version, whose slots follow those of the model; or None
    step: Body | None = None
    # time from which devices refuse the manifest, Unix milliseconds; None for never
    expires: int | None = None


def manifest(
    run: BoundRun,
    task: Task,
    content: Body,
    opening: Opening,
    *,
    number: int,
    phase: Phase = "train",
) -> messages.ModelMessage:
    """Build the manifest that opens a task's round; its vals are the contract's scalars."""
    declared = {one.name for one in run.ask.numbers}
    share, moved = run.config.run.client_fraction, opening.step
    after = messages.count_of(len(content.data), opening.chunk)
    return messages.ModelMessage(
        serial=opening.serial,
        run=number,
        round=task.round,
        version=task.base,
        phase=phase,
        part="shared",
        spec=run.spec.digest,
        enc="f4",
        digest=content.digest,
        size=len(content.data),
        chunk=opening.chunk,
        until=opening.until,
        spread=opening.spread,
        inline=opening.inline,
        share=share,
        vals=_declared(task.values, declared),
        cohort=salt(run.config.run.seed, number, task.round) if share < 1.0 else None,
        ahead=opening.ahead or None,
        single=opening.single or None,
        deltas=() if moved is None else ((task.base - 1, after),),
        step=None if moved is None else moved.digest,
        step_size=None if moved is None else len(moved.data),
        expires=opening.expires,
    )


def model(ends: Ends, message: messages.ModelMessage) -> Publication:
    return Publication(topics.common(ends.fleet, "model", ends.audience), ends.to_all(message))


def time(ends: Ends, *, serial: int, now: int) -> Publication:
    """Announce server time."""
    return Publication(
        topics.common(ends.fleet, "time"), ends.to_all(messages.TimeMessage(serial=serial, t=now))
    )


def salt(seed: int, run: int, number: int) -> bytes:
    """Return the 16-byte salt of a round's participation draw; the same after a restart.

    >>> salt(0, 1, 1) == salt(0, 1, 1), salt(0, 1, 1) == salt(0, 1, 2)
    (True, False)
    """
    numbers = b"".join(value.to_bytes(8, "big") for value in (seed, run, number))
    return hashlib.sha256(b"gridfed/1/cohort\0" + numbers).digest()[:16]


def spread(devices: int, size: int, *, down_rate: float, up_rate: float) -> int:
    """Return the window of the devices' random delay, in milliseconds.

    It is the time in which the broker sends ``size`` bytes to every device, or in which this daemon
    processes one update of each, whichever is longer, and at least ten seconds.

    >>> spread(5_000, 23_200, down_rate=5e6, up_rate=200)
    25000
    >>> spread(8, 23_200, down_rate=5e6, up_rate=200)
    10000
    """
    longest = max(10.0, devices * size / down_rate, devices / up_rate)
    return int(min(1000 * longest, messages.SPAN_LIMIT))


def _declared(values: Mapping[str, float], names: set[str]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if name in names}
