"""Answer once a day to the fleet's histogram of scores, with noise that is drawn once and saved.

The answer and its charge are on disk before the answer is sent, so that a restart sends the same bytes
and draws nothing. A day without an answer of this device reveals nothing about its readings: it
answers without a score, too.
"""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Callable
from typing import Any, Final

from edge_sdk.app.cli import fields
from edge_sdk.app.clock import DAY
from edge_sdk.config import Config
from edge_sdk.forecasting.model_monitor import ModelMonitor
from edge_sdk.privacy.event import PrivacyCharge
from edge_sdk.privacy.ledger import BudgetSpent
from edge_sdk.session.session import Session
from edge_sdk.shared_math import score_cells
from edge_sdk.shared_math.local_histogram import LocalHistogram
from edge_sdk.store.store import DeviceStore
from edge_sdk.training.privacy_accountant import PrivacyAccountant
from edge_sdk.wire.errors import Refused
from edge_sdk.wire.protocol.codec import decode, encode
from edge_sdk.wire.protocol.messages import ScoreMessage

logger = logging.getLogger(__name__)

POINT: Final = "score"
"""Point of the charges in the ledger."""
ANSWER: Final = "score answer"
"""Name of the stored record with the last answer."""
SPREAD: Final = 6 * 3_600_000
"""Milliseconds after midnight over which the devices of a fleet spread their answers."""
SENDS: Final = 4
"""Largest number of times that one process sends an answer."""
RETRY: Final = 3600.0
"""Seconds after which an answer that the budget refused is tried again."""


class ScoreReporter:
    """The answers of one device; nothing happens unless owner and aggregator have opted in.

    Args:
        config: Configuration of the device.
        store: Store of the last answer and of the ledger.
        session: Session of the device.
        accountant: Returns the privacy account in force.
        monitor: Returns the daily scores.
        rng: Source of randomness.
    """

    def __init__(
        self,
        config: Config,
        *,
        store: DeviceStore,
        session: Session,
        accountant: Callable[[], PrivacyAccountant],
        monitor: Callable[[], ModelMonitor],
        rng: random.Random | None = None,
    ) -> None:
        section = config.scores
        self._section, self._store, self._session = section, store, session
        self._accountant, self._monitor = accountant, monitor
        self._rng = rng or random.SystemRandom()
        digest = hashlib.sha256(config.id.encode()).digest()
        self._offset = int.from_bytes(digest[:8], "big") % SPREAD
        self._mechanism = LocalHistogram.best(score_cells.CELLS, section.epsilon)
        self._last = _stored(store) if section.report else None
        self._sends, self._sent_on = 0, -1.0
        self._refused, self._again_at = -1, float("-inf")

    def report(self) -> None:
        """Draw and save the answer of a new day, and send an answer that was not sent on this link.

        Raises:
            StoreFull: The answer cannot be saved; nothing is sent.
        """
        now, session = self._session.time.now(), self._session
        if not self._section.report or now is None or not session.may_report_scores:
            return
        today = now // DAY
        if self._is_due(today, now % DAY):
            self._draw(today, now)
        last = self._last
        if last is None or last.day < today - 1 or self._sends >= SENDS:
            return
        if self._sent_on != session.linked_at and session.send_score(last):
            self._sends, self._sent_on = self._sends + 1, session.linked_at

    def status(self) -> dict[str, Any]:
        """Return what was sent and spent; empty unless the owner has opted in."""
        if not self._section.report:
            return {}
        return {
            "answered": None if self._last is None else self._last.day,
            "epsilon": self._accountant().epsilon_at(POINT),
            "allowed": self._section.budget,
        }

    def _is_due(self, today: int, since_midnight: int) -> bool:
        """Return whether to draw now: at the device's own time of day, or at once after a gap."""
        last = -1 if self._last is None else self._last.day
        if last >= today or self._session.now < self._again_at:
            return False
        return since_midnight >= self._offset or last < today - 1

    def _draw(self, today: int, now: int) -> None:
        ratio = self._monitor().scores.ratio(score_cells.DAYS, before=today)
        mechanism = self._mechanism
        blob = mechanism.draw(score_cells.cell_of(ratio), self._rng)
        answer = ScoreMessage(
            today, score_cells.NAME, mechanism.cells, mechanism.how, mechanism.epsilon, blob
        )
        charge = PrivacyCharge(now, "device", POINT, mechanism.how, 1.0 / mechanism.epsilon)
        try:
            self._accountant().charge_beside(charge, self._section.budget, ANSWER, encode(answer))
        except BudgetSpent as error:
            self._again_at = self._session.now + RETRY
            if self._refused != today:
                logger.warning("score not reported %s", fields(day=today, why=error))
            self._refused = today
            return
        self._last, self._sends, self._sent_on = answer, 0, -1.0
        self._session.count("scores drawn")


def _stored(store: DeviceStore) -> ScoreMessage | None:
    """Return the saved answer, or None."""
    body = store.paper(ANSWER)
    try:
        return None if body is None else decode(ScoreMessage, body)
    except Refused:
        return None
