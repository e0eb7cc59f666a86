"""Compute and seal what a site sends to its parent: the change of its model, as one device's update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.config import Config
from edge_sdk.wire.contract.method import Up
from edge_sdk.wire.keys import Signer
from edge_sdk.wire.protocol import messages as m
from edge_sdk.wire.protocol.codec import pack_tensor
from edge_sdk.wire.protocol.outbox_state import OutboxEntry, UplinkCounters
from edge_sdk.wire.protocol.signed_body import signed_body

Turn = tuple[int, int, int, int]
"""Run, round, attempt and step of a task of the parent."""


@dataclass(frozen=True, slots=True)
class ParentRecord:
    """The model received last from the parent, as a site's state records it.

    Attributes:
        turn: Run, round, attempt and step of the parent's task.
        version: The parent's version of the model.
        w: The model, shape ``(P,)``, float32.
        rounds: Rounds of the site that have moved its model since.
        count: Largest number of updates in one of them.
    """

    turn: Turn
    version: int
    w: NDArray[np.float32]
    rounds: int
    count: int

    @classmethod
    def of(cls, state: Any) -> ParentRecord | None:  # noqa: ANN401 - the half's own
        """Return the record in a state, or None before the first model of the parent."""
        kept: Mapping[str, Any] = getattr(state, "parent", {})
        if not kept:
            return None
        turn = (kept["run"], kept["number"], kept["attempt"], kept["step"])
        return cls(turn, kept["version"], kept["w"], kept["rounds"], kept["count"])


def site_update(
    received: ParentRecord,
    w: NDArray[np.float64],
    numbers: UplinkCounters,
    *,
    up: Up,
    spec: bytes,
    max_count: int,
) -> m.UpdateMessage:
    """Return the update of a site: received minus present model, or the present model.

    It names no device; its count is that of the site's largest round, at most ``max_count``. Losses
    of devices are not passed on.

    Args:
        received: The parent's model that the site's rounds began with.
        w: Present model of the site.
        numbers: Last sequence number used, and the releases so far.
        up: Answer that the parent's method expects.
        spec: Layout digest of the shared vector.
        max_count: Largest count of devices that the parent receives.
    """
    run, number, _, _ = received.turn
    vector = w if up is Up.WEIGHTS else received.w.astype(np.float64) - w
    return m.UpdateMessage(
        run=run,
        round=number,
        base=received.version,
        life=numbers.life,
        seq=numbers.seq + 1,
        spent=numbers.spent + 1,
        spec=spec,
        part=up.value,
        enc="f4",
        n=min(received.count, max_count),
        vals={},
        blob=pack_tensor(vector.astype(np.float32), "f4"),
    )


def sealed(
    message: m.UpdateMessage, config: Config, signer: Signer, encrypt_to: bytes | None = None
) -> OutboxEntry:
    """Return the outbox entry of an update: encoded, encrypted if a key is given, and signed once."""
    body, proof = signed_body(
        message, fleet=config.fleet, sender=config.id, signer=signer, encrypt_to=encrypt_to
    )
    return OutboxEntry(
        life=message.life,
        seq=message.seq,
        body=body,
        proof=proof,
        run=message.run,
        round=message.round,
        base=message.base,
        spec=message.spec,
        spent=message.spent,
    )
