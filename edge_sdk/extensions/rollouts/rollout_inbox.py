"""Follow the rollout of the fleet: its description, its stage, and the archive of its version.

Both messages are verified before they arrive here: the description by the root's key, the stage by the
aggregator's. They are retained, so a broker may repeat or withhold them; a lower serial number is refused.
Both are saved, so that a device without a link continues with the stage that it knows.
"""

from __future__ import annotations

import logging
from typing import TypeVar

from edge_sdk.app.cli import fields
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.config import Config
from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.rollouts.messages import RolloutMessage, StageMessage
from edge_sdk.protocol.codec import decode
from edge_sdk.protocol.envelope import digest, ref
from edge_sdk.session.download import DownloadCompleted, Downloader
from edge_sdk.session.server_clock import ServerClock
from edge_sdk.store.store import DeviceStore

logger = logging.getLogger(__name__)

_PLAN, _STAGE = "rollout", "rollout stage"
_PLAN_SERIAL, STAGE_SERIAL = "rollout serial", "rollout stage serial"

M = TypeVar("M", RolloutMessage, StageMessage)


def refuse_privacy(config: Config) -> None:
    """Refuse to report beside a privacy mechanism.

    Raises:
        ValueError: The message names the key.
    """
    if config.privacy.mechanism.name != "none":
        raise ValueError(
            "accept.rollouts: a report is computed from readings without noise, so sending it voids "
            "the claim of [privacy]; remove it, or set privacy.mechanism.name = 'none'"
        )


@dataclass(frozen=True, slots=True)
class FollowedRollout:
    """A rollout as a device knows it."""

    plan: RolloutMessage  # its signed description
    of: bytes  # reference of the description
    stage: StageMessage


def saved_rollout(store: DeviceStore) -> FollowedRollout | None:
    """Return the rollout that a store holds; None without a description or a stage of it."""
    plan, body = _saved(store, RolloutMessage, _PLAN)
    stage, _ = _saved(store, StageMessage, _STAGE)
    of = ref(digest(body))
    if plan is None or stage is None or stage.of != of:
        return None
    return FollowedRollout(plan, of, stage)


class RolloutInbox:
    """The rollout that one device follows.

    Args:
        store: Store that keeps the description and the stage.
        pause: Seconds between two attempts to download the archive.

    Attributes:
        followed: The rollout; None without a description or a stage of it.
    """

    def __init__(
        self,
        store: DeviceStore,
        downloads: Downloader,
        time: ServerClock,
        *,
        pause: float,
    ) -> None:
        self._store, self._downloads, self._time = store, downloads, time
        self._pause = pause
        self._retry_at = -float("inf")
        self.followed = saved_rollout(store)

    def receive_plan(self, plan: RolloutMessage, body: bytes) -> None:
        """Save a newer description; the same one again is ignored.

        Raises:
            Refused: ROLLBACK for one with a lower serial number, or another one with the same.
        """
        if self._is_new(plan, body, _PLAN, self._store.fact(_PLAN_SERIAL)):
            self._store.file_paper(_PLAN, body, **{_PLAN_SERIAL: plan.serial})
            about = {"name": plan.name, "version": plan.version}
            logger.info("rollout described %s", fields(**about))
            self._follow()

    def receive_stage(self, stage: StageMessage, body: bytes) -> None:
        """Save a newer stage; it counts once its description is here too."""
        if self._is_new(stage, body, _STAGE, self._store.fact(STAGE_SERIAL)):
            self._store.file_paper(_STAGE, body, **{STAGE_SERIAL: stage.serial})
            self._follow()

    def request(self) -> None:
        """Download the archive of the version while nothing else is downloaded."""
        found, now = self.followed, self._time.uptime
        if found is None or self._downloads.manifest is not None or now < self._retry_at:
            return
        self._retry_at = now + self._pause
        try:
            self._downloads.begin(found.plan)
        except Refused as refused:
            self._retry_at = float("inf")
            logger.warning("rollout version not loaded %s", fields(why=refused))

    def archive(self, completed: DownloadCompleted) -> bytes | None:
        found = self.followed
        return completed.body if found is not None and completed.manifest == found.plan else None

    def _follow(self) -> None:
        before, self.followed = self.followed, saved_rollout(self._store)
        found = self.followed
        if before is None or found is None or before.of != found.of:
            self._retry_at = -float("inf")
        if found is not None:
            stage = found.stage
            logger.info("rollout followed %s", fields(phase=stage.phase, stage=stage.stage))

    def _is_new(self, message: M, body: bytes, name: str, floor: int) -> bool:
        if message.serial > floor:
            return True
        if message.serial == floor and body == self._store.paper(name):
            return False
        raise Refused(Reason.ROLLBACK, f"serial {message.serial} is not above {floor}")


def _saved(store: DeviceStore, what: type[M], name: str) -> tuple[M | None, bytes]:
    """Return a saved message and its bytes; one that cannot be read is ignored."""
    body = store.paper(name) or b""
    try:
        return (decode(what, body) if body else None), body
    except Refused as refused:
        logger.warning("stored value rejected %s", fields(what=name, why=refused))
        return None, b""
