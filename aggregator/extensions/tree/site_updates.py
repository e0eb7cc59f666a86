"""Compute a site's update for its parent: the change of its model, as one device's update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.protocol import messages as m
from edge_sdk.protocol.codec import pack_tensor
from edge_sdk.protocol.contract.method import Up
from edge_sdk.protocol.outbox_state import UplinkCounters

Turn = tuple[int, int, int, int]  # run, round, attempt and step of a task of the parent


@dataclass(frozen=True, slots=True)
class ParentRecord:
    """The model received last from the parent, as a site's state records it."""

    turn: Turn  # run, round, attempt and step of the parent's task
    version: int  # the parent's version of the model
    w: NDArray[np.float32]  # the model, shape ``(P,)``, float32
    rounds: int  # rounds of the site that have moved its model since
    count: int  # largest number of updates in one of them

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
        numbers: Last sequence number used, and the releases so far.
        up: Answer that the parent's method expects.
        spec: Layout digest of the shared vector.
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
