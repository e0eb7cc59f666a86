"""Answer once a day to the fleet's histogram of scores, with noise that is drawn once and saved.

The answer and its charge are on disk before the answer is sent, so that a restart sends the same bytes
and draws nothing. A day without an answer of this device reveals nothing about its readings: it
answers without a score, too.
"""

from __future__ import annotations

import hashlib
import logging
import math
import random
from typing import Any, Final

from edge_sdk.app.cli import fields
from edge_sdk.app.clock import DAY
from edge_sdk.config import Config
from edge_sdk.errors import Refused
from edge_sdk.extensions.scores import score_cells
from edge_sdk.extensions.scores.local_histogram import LocalHistogram
from edge_sdk.extensions.scores.messages import ScoreMessage
from edge_sdk.extensions.scores.section import ScoresSection
from edge_sdk.privacy.ledger import BudgetSpent, PrivacyAccount, PrivacyCharge
from edge_sdk.protocol.codec import decode, encode
from edge_sdk.protocol.outbox_state import SCORES
from edge_sdk.store.store import DeviceStore
from edge_sdk.training.extension import DeviceExtension, DeviceParts

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


class ScoreReporter(DeviceExtension):
    """The answers of one device; nothing happens unless the aggregator has opted in, too."""

    def __init__(self, device: DeviceParts, rng: random.Random | None = None) -> None:
        super().__init__(device)
        section: ScoresSection = device.config.extensions["scores"]
        self._section, self._session = section, device.session
        self._rng = rng or random.SystemRandom()
        digest = hashlib.sha256(device.config.id.encode()).digest()
        self._offset = int.from_bytes(digest[:8], "big") % SPREAD
        self._mechanism = LocalHistogram.best(score_cells.CELLS, section.epsilon)
        self._last = _stored(device.store)
        self._sends, self._sent_on = 0, -1.0
        self._refused, self._again_at = -1, float("-inf")

    def on_tick(self) -> None:
        """Draw and save the answer of a new day, and send an answer that was not sent on this link."""
        now, session = self._session.time.now(), self._session
        if now is None or not self._is_collected:
            return
        today = now // DAY
        if self._is_due(today, now % DAY):
            self._draw(today, now)
        last = self._last
        if last is None or last.day < today - 1 or self._sends >= SENDS:
            return
        if self._sent_on != session.connection.linked_at and session.send(last):
            self._sends, self._sent_on = self._sends + 1, session.connection.linked_at

    def status(self) -> dict[str, Any]:
        found = {
            "answered": None if self._last is None else self._last.day,
            "epsilon": epsilon_at(self.device.active.accountant.account, POINT),
            "allowed": self._section.budget,
        }
        return {"scores": found}

    @property
    def _is_collected(self) -> bool:
        """Return whether messages may be sent, and the aggregator collects scores."""
        session, welcome = self._session, self._session.outbox.welcome
        is_collected = welcome is not None and SCORES in welcome.caps
        return session.may_request and is_collected and not session.participation.is_held

    def _is_due(self, today: int, since_midnight: int) -> bool:
        last = -1 if self._last is None else self._last.day
        if last >= today or self._session.now < self._again_at:
            return False
        return since_midnight >= self._offset or last < today - 1

    def _ratio(self, today: int) -> float | None:
        """Return the served error of the days before as a multiple of the naive one; None if unknown.

        The extension whose row has ``scored`` knows it: a function of the store, the runtime, the number
        of days and the day before which they are.
        """
        scored = self.device.config.offered("scored")
        if scored is None:
            return None
        store, learner = self.device.store, self.device.active.learner
        found: float | None = scored(store, learner, score_cells.DAYS, before=today)
        return found

    def _draw(self, today: int, now: int) -> None:
        mechanism, ratio = self._mechanism, self._ratio(today)
        blob = mechanism.draw(score_cells.cell_of(ratio), self._rng)
        answer = ScoreMessage(
            today, score_cells.NAME, mechanism.cells, mechanism.how, mechanism.epsilon, blob
        )
        charge = PrivacyCharge(now, "device", POINT, mechanism.how, 1.0 / mechanism.epsilon)
        try:
            self._charge(charge, encode(answer))
        except BudgetSpent as error:
            self._again_at = self._session.now + RETRY
            if self._refused != today:
                logger.warning("score not reported %s", fields(day=today, why=error))
            self._refused = today
            return
        self._last, self._sends, self._sent_on = answer, 0, -1.0
        self._session.count("scores drawn")

    def _charge(self, charge: PrivacyCharge, content: bytes) -> None:
        """Save an answer with its charge, which counts in the account of all releases, too."""
        accountant, budget = self.device.active.accountant, self._section.budget
        account = accountant.current()
        spent = epsilon_at(account, charge.point)
        if spent + 1.0 / charge.multiplier > budget * (1.0 + 1e-9):
            raise BudgetSpent(
                f"epsilon {spent:.4g} is charged at the {charge.point}; {budget:g} is allowed, and "
                f"one more costs {1.0 / charge.multiplier:g}",
                hint="see gridfed-edge budget CONFIG",
            )
        after = account.charge(charge)
        self.device.store.save_answer(ANSWER, content, charge)
        accountant.adopt_account(after)


def epsilon_at(account: PrivacyAccount, point: str) -> float:
    """Return the sum of the ε of an account's own pure releases at one point.

    >>> once = PrivacyCharge(0, "device", "score", "k-ary", multiplier=0.5, count=3)
    >>> epsilon_at(PrivacyAccount((once,)), "score"), epsilon_at(PrivacyAccount((once,)), "update")
    (6.0, 0.0)
    """
    found = [charge for charge in account.charges if charge.point == point]
    if any(charge.multiplier <= 0.0 for charge in found):
        return math.inf
    return math.fsum(charge.count / charge.multiplier for charge in found)


def budget_use(config: Config, account: PrivacyAccount) -> tuple[dict[str, Any], str]:
    """Return the privacy cost of the answers, their budget, and a sentence about both."""
    section, spent = config.extensions.get("scores", ScoresSection()), epsilon_at(account, POINT)
    allowed, limit, of = None, "none is sent now", ""
    if section.report:
        allowed, limit = section.budget, f"{section.epsilon:g} for one a day"
        of = f" of {allowed:g}"
    text = f"answers about scores: epsilon {spent:g}{of} for the device's whole record, {limit}"
    found = {"epsilon": spent if math.isfinite(spent) else None, "allowed": allowed}
    return {"scores": found}, f"{text}; they are in the charges above, too"


def _stored(store: DeviceStore) -> ScoreMessage | None:
    body = store.paper(ANSWER)
    try:
        return None if body is None else decode(ScoreMessage, body)
    except Refused:
        return None
