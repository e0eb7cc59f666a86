"""Save a device's trial of a rollout's version."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final, Literal

import numpy as np

from edge_sdk.app.cli import fields
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.config import Config
from edge_sdk.errors import WireError
from edge_sdk.extensions.rollouts.rollout_inbox import FollowedRollout, saved_rollout
from edge_sdk.extensions.rollouts.trial_record import TrialRecord
from edge_sdk.protocol.codec import Leaf, pack_leaves, unpack_leaves
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.store.store import DeviceStore

logger = logging.getLogger(__name__)

TrialState = Literal["wait", "score", "serve", "returned", "declined"]
STATES: Final[Mapping[str, TrialState]] = {
    one: one for one in ("wait", "score", "serve", "returned", "declined")
}
_TRIAL, _VECTOR = "rollout trial", "rollout vector"
_UNREADABLE = (WireError, LookupError, ValueError, TypeError, AttributeError, OverflowError)


@dataclass(frozen=True, slots=True, eq=False)
class SavedTrial:
    """The state of a device in a rollout, and the errors that it has measured."""

    of: bytes = b""  # reference of the rollout's description
    state: TrialState = "wait"  # ``wait`` until the version is here; then as in ``TrialMessage``
    why: str = ""  # reason of the state, for people
    upto: int = -1  # number of the newest row compared; -1 before the first
    record: TrialRecord = field(default_factory=TrialRecord.empty)  # errors by day

    @property
    def is_compared(self) -> bool:
        return self.state in ("score", "serve") or (self.state == "returned" and self.upto >= 0)

    def save(self, store: DeviceStore) -> None:
        """Save everything in one transaction.

        Raises:
            StoreFull: No space; the saved state stays.
        """
        store.file_paper(_TRIAL, pack_leaves(self._leaves()))

    def _leaves(self) -> dict[str, Leaf]:
        named: dict[str, Leaf] = {"of": self.of, "state": self.state, "why": self.why}
        return {**named, "upto": self.upto, "record": self.record.arrays()}

    @classmethod
    def of_leaves(cls, leaves: Mapping[str, Any]) -> SavedTrial:
        """Rebuild from the saved leaves.

        Raises:
            KeyError: A leaf is missing, or the state is unknown.
            TypeError: A leaf of another type.
        """
        of, upto, why = leaves["of"], leaves["upto"], leaves["why"]
        if type(of) is not bytes or type(upto) is not int or type(why) is not str:
            raise TypeError("rollout trial: a leaf is of another type")
        if not -1 <= upto < 2**53:
            raise ValueError(f"rollout trial: upto is {upto}")
        record = TrialRecord.from_arrays(leaves["record"])
        return cls(of, STATES[leaves["state"]], why, upto, record)


def saved_trial(store: DeviceStore) -> SavedTrial:
    """Return the trial in a store; a new one if there is none, or it is unreadable."""
    paper = store.paper(_TRIAL)
    if paper is None:
        return SavedTrial()
    try:
        return SavedTrial.of_leaves(unpack_leaves(paper))
    except _UNREADABLE as error:
        why = error if str(error) else type(error).__name__
        logger.warning("saved record refused %s", fields(record=_TRIAL, why=why))
        return SavedTrial()


def save_vector(store: DeviceStore, of: bytes, vector: Vector) -> None:
    store.file_paper(_VECTOR, pack_leaves({"of": of, "p": vector}))


def saved_vector(store: DeviceStore, of: bytes) -> Vector | None:
    """Return the tuned vector of a rollout's version; None if there is none that can be read."""
    paper = store.paper(_VECTOR)
    if paper is None:
        return None
    try:
        leaves = unpack_leaves(paper)
        p = leaves["p"]
        is_usable = leaves["of"] == of and p.ndim == 1 and p.dtype == np.float32
        return p if is_usable and np.isfinite(p).all() else None
    except _UNREADABLE:
        return None


def drop_vector(store: DeviceStore) -> None:
    store.drop_papers(_VECTOR, ())


def saved_status(_config: Config, store: DeviceStore) -> dict[str, Any]:
    return trial_status(saved_rollout(store), saved_trial(store))


def trial_status(followed: FollowedRollout | None, saved: SavedTrial) -> dict[str, Any]:
    """Return a device's part in the rollout in plain words; empty without one."""
    if followed is None:
        return {}
    plan, stage = followed.plan, followed.stage
    state, why = (saved.state, saved.why) if saved.of == followed.of else ("wait", "")
    found = {
        "bundle": plan.name,
        "version": plan.version,
        "phase": stage.phase,
        "stage": stage.stage,
        "state": state,
        **({"why": why} if why else {}),
        "days compared": len(saved.record.days) if saved.of == followed.of else 0,
    }
    return {"rollout": found}
