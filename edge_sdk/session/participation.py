"""Decide whether a device may train, release or request anything now, and say why not."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence

from edge_sdk.app.cli import fields
from edge_sdk.errors import ABILITIES, Reason
from edge_sdk.limits import DailyQuota, lesser
from edge_sdk.session.durable_outbox import BudgetRefused, DurableOutbox
from edge_sdk.session.task_inbox import TaskInbox
from edge_sdk.store import WIPE_ORDERED
from edge_sdk.store.store import DeviceStore

BUDGET_EXHAUSTED = "budget"
"""Stop reason: the privacy budget is exhausted."""


class Participation:
    """The reasons for which a device releases nothing, kept across restarts where they must be.

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
        """Stop releases before the state is erased; saved as by ``hold``."""
        self.is_held = self.is_wipe_ordered = True

    def exhaust_budget(self) -> bool:
        """Stop releases: the privacy budget is exhausted. Return False if it was before."""
        is_new, self.is_budget_exhausted = not self.is_budget_exhausted, True
        return is_new

    def permit(self) -> None:
        self.is_budget_exhausted = False

    def allow(self, releases: int) -> None:
        """Set and save the total of allowed releases; the device's own budget still applies."""
        self.releases_allowed = releases
        self._store.set_facts(**{"releases allowed": releases})

    def follow(self, notes: Iterable[BudgetRefused]) -> None:
        """Limit the releases to the number that the aggregator counts."""
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


logger = logging.getLogger(__name__)


SAVE_AFTER = 8_192
"""Bytes that cross the link until the count is saved again, also between the hourly saves; a larger
quota counts in steps of ``SHARE``."""

SHARE = 256
"""Fraction of the quota that may be lost from the count when power fails."""


class LinkQuota:
    """The daily quota of one device's link."""

    def __init__(self, store: DeviceStore, own: int | None) -> None:
        self._store, self._own = store, own
        self._day, self._counted = DailyQuota(store.fact("day"), store.fact("used")), 0
        self._saved = self._day
        self._others: tuple[LinkQuota, ...] = ()

    def share(self, others: Iterable[LinkQuota]) -> None:
        """Count the bytes of the device's other participations against the same quota."""
        self._others = tuple(others)

    @property
    def day(self) -> DailyQuota:
        """The day and its bytes so far, of this participation alone."""
        return self._day

    def is_spent(self, announced: int | None) -> bool:
        """Return whether the quota is used up; the lower of the announced and the own one holds."""
        used = self._day
        if self._others:
            used = used.with_others(other.day for other in self._others)
        return used.is_spent(lesser(announced, self._own))

    def count(self, crossed: int, now: int | None, *, announced: int | None) -> None:
        """Count the bytes since the last call, and log once when the quota is used up."""
        was_spent = self.is_spent(announced)
        self._day = self._day.use(crossed - self._counted, now)
        self._counted = crossed
        if self.is_spent(announced) and not was_spent:
            logger.warning("daily quota exhausted %s", fields(bytes=self._day.used))
            self.save()
        elif self._day.day != self._saved.day or self._is_behind(announced):
            self.save()

    def _is_behind(self, announced: int | None) -> bool:
        step = max(SAVE_AFTER, (lesser(announced, self._own) or 0) // SHARE)
        return self._day.used - self._saved.used >= step

    def save(self) -> None:
        """Save the count for the next process, and for ``gridfed-edge budget`` beside this one."""
        self._saved = self._day
        self._store.set_facts(day=self._day.day, used=self._day.used)


_DECLINED = "runs declined"

UNNAMED = "-"
"""Placeholder for the empty name of the run that is announced to all."""


class RunChoice:
    """The runs that the last welcome names, and those that this device cannot take part in.

    A declined run is tried again after the next welcome: settings, sources and software may have
    changed.
    """

    def __init__(self, store: DeviceStore) -> None:
        self._store = store
        self.names: tuple[str, ...] = ()  # names of the runs in the order of the welcome
        self.declined: dict[str, str] = {}  # reason for which each run was declined, by its name

    def offer(self, names: Sequence[str]) -> str:
        """Set the runs of a welcome; return the first one's name, empty for the run of all.

        The run of all, which no welcome names, may have been declined before the welcome arrived.
        """
        self.names = tuple(names)
        kept = {} if names else {x: y for x, y in self.declined.items() if x == UNNAMED}
        self._save(kept)
        return self.names[0] if self.names else ""

    def is_last(self, name: str) -> bool:
        """Return whether no other run is left if this one is declined."""
        return self._after(name) is None

    def decline(self, name: str, reason: Reason) -> str | None:
        """Record that the device cannot take part in a run.

        Args:
            reason: Reason; one that says nothing of the device's abilities changes nothing.

        Returns:
            The name of the run to take part in instead, or None if none is left.
        """
        if reason not in ABILITIES or name not in (self.names or ("",)):
            return None
        self._save({**self.declined, name or UNNAMED: reason.name})
        return self._after(name)

    def accept(self, name: str) -> None:
        """Record that the device takes part in a run: its announcement fits now."""
        left = {x: y for x, y in self.declined.items() if x != (name or UNNAMED)}
        if left != self.declined:
            self._save(left)

    def _after(self, name: str) -> str | None:
        left = (one for one in self.names if one != name and one not in self.declined)
        return next(left, None)

    def _save(self, declined: dict[str, str]) -> None:
        if declined != self.declined or declined != declined_runs(self._store):
            self._store.file_paper(_DECLINED, json.dumps(declined).encode())
        self.declined = declined


def declined_runs(store: DeviceStore) -> Mapping[str, str]:
    """Return the runs declined since the last welcome, with the reasons, as the store holds them."""
    try:
        found = json.loads(store.paper(_DECLINED) or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
