"""Decide whether a device may train, release or request anything now, and say why not."""

from __future__ import annotations

from collections.abc import Iterable

from edge_sdk.session.durable_outbox import BudgetRefused, DurableOutbox
from edge_sdk.session.link_quota import LinkQuota
from edge_sdk.session.task_inbox import TaskInbox
from edge_sdk.store.erasure import WIPE_ORDERED
from edge_sdk.store.store import DeviceStore

BETWEEN_ROUNDS = 0
"""End of the round in a manifest of phase ``pause`` while the next round waits for its start."""

BUDGET_EXHAUSTED = "budget"
"""Stop reason: the privacy budget is exhausted."""


class Participation:
    """The reasons for which a device releases nothing, kept across restarts where they must be.

    Args:
        store: Store that keeps the operator's decisions.
        outbox: Outbox, for refusals and its capacity.
        inbox: Task inbox, for the phase of the run.
        quota: Daily quota of the link.

    Attributes:
        is_held: True while an operator's command stops the device.
        is_wipe_ordered: True from the command to erase the device's state on.
        is_budget_exhausted: True if the privacy budget has no room for a release.
        releases_allowed: Total releases that the operator allows; None applies the configured
            budget.
    """

    def __init__(
        self, store: DeviceStore, outbox: DurableOutbox, inbox: TaskInbox, quota: LinkQuota
    ) -> None:
        self._store, self._outbox, self._inbox, self._quota = store, outbox, inbox, quota
        self.is_held = bool(store.fact("stopped"))
        self.is_wipe_ordered = bool(store.fact(WIPE_ORDERED))
        self.is_budget_exhausted = False
        allowed = store.fact("releases allowed", -1)
        self.releases_allowed = allowed if allowed >= 0 else None

    # --- decisions of the operator and of the privacy account -------------------------------------

    def hold(self, *, is_held: bool) -> None:
        """Stop or resume by command; ``CommandLog.add`` saves it with the command."""
        self.is_held = is_held

    def order_wipe(self) -> None:
        """Release nothing more: the state is to be erased; saved as by ``hold``."""
        self.is_held = self.is_wipe_ordered = True

    def exhaust_budget(self) -> bool:
        """Stop releases: the privacy budget is exhausted. Return False if it was before."""
        is_new, self.is_budget_exhausted = not self.is_budget_exhausted, True
        return is_new

    def permit(self) -> None:
        """Resume releases: the privacy budget has room."""
        self.is_budget_exhausted = False

    def allow(self, releases: int) -> None:
        """Set and save the total of allowed releases; the device's own budget still applies."""
        self.releases_allowed = releases
        self._store.set_facts(**{"releases allowed": releases})

    def follow(self, notes: Iterable[BudgetRefused]) -> None:
        """Release no more than the aggregator counts."""
        for note in notes:
            self.allow(note.spent)

    # --- what follows -----------------------------------------------------------------------------

    @property
    def why_stopped(self) -> str:
        """Reason why the device does not train for the fleet now; empty if none."""
        if self.is_held or self._inbox.phase == "train":
            return self.why_silent
        return self._inbox.phase

    @property
    def is_between_rounds(self) -> bool:
        """Return whether the next round waits for its start, which no operator prevents."""
        manifest = self._inbox.manifest
        is_pause = manifest is not None and manifest.phase == self._inbox.phase == "pause"
        return is_pause and manifest is not None and manifest.until == BETWEEN_ROUNDS

    @property
    def why_silent(self) -> str:
        """Reason why nothing derived from readings may be sent, in any phase; empty if none."""
        if self.is_held:
            return "command"
        if self.is_budget_exhausted:
            return BUDGET_EXHAUSTED
        if self.is_rationed:
            return "quota"
        stopped = self._outbox.state.stopped
        return stopped.name if stopped is not None else ""

    @property
    def is_rationed(self) -> bool:
        """Return whether the daily quota is used up; receipts, commands and status continue."""
        return self._quota.is_spent(self._outbox.quota)

    @property
    def may_release(self) -> bool:
        """Return whether a release may be sent now: not stopped, and the numbers are confirmed."""
        return self._outbox.state.may_release and not self.why_stopped

    @property
    def may_train(self) -> bool:
        """Return whether the newest task may be answered now."""
        is_late = self._inbox.is_over and self._inbox.is_common
        return self.may_release and not is_late

    def accepts_encoding(self, enc: str) -> bool:
        """Return whether an update may use this encoding: float32, or one the welcome allowed."""
        welcome = self._outbox.state.welcome
        return enc == "f4" or (welcome is not None and enc in welcome.caps)
