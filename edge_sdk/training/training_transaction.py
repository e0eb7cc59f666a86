"""One task, answered: think, protect, charge, save, send. What leaves has been paid for before.

Crash anywhere: either the round was saved together with its release, and the same bytes go out, or
nothing happened and the same round is learned again to the same bits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from edge_sdk.app.cli import fields
from edge_sdk.errors import StoreFull
from edge_sdk.privacy.ledger import BudgetSpent
from edge_sdk.runtime import GraphError
from edge_sdk.session.session import Session
from edge_sdk.store.store import DeviceStore
from edge_sdk.training.active_run import GivenUp, Work
from edge_sdk.training.flush_scheduler import FlushScheduler
from edge_sdk.training.outbox_entry import record
from edge_sdk.wire.contract.method import END, Task, Update
from edge_sdk.wire.protocol.codec import Leaf
from edge_sdk.wire.protocol.outbox import OutboxEntry, UplinkCounters

logger = logging.getLogger(__name__)

Seal = Callable[[Update, Task, UplinkCounters], OutboxEntry]
"""Makes what is owed of an update, the task it answers, and the numbers before it."""


class TrainingTransaction:
    """What turns a task into something learned and, perhaps, an answer that is owed."""

    def __init__(
        self,
        *,
        store: DeviceStore,
        session: Session,
        work: Work,
        upkeep: FlushScheduler,
        seal: Seal,
    ) -> None:
        """Hold on to what a round is learned with, saved in, sealed and sent by."""
        self._store, self._session, self._work, self._upkeep = store, session, work, upkeep
        self._seal = seal

    def is_ready(self, task: Task) -> bool:
        """Whether a task may be learned now: the final model always may.

        A task of our own is not wasted on a device that has nothing to learn from yet.
        """
        if task.ask == END:
            return True
        work, session = self._work, self._session
        if not session.may_learn or not session.agreed_on(work.ask.enc) or self._upkeep.held():
            return False
        return work.is_common or len(work.learner.windows()) > 0

    def attempt(self, task: Task) -> None:
        """Learn one round; give it up without a trace where it cannot be finished or paid for."""
        session, begun = self._session, self._session.now
        session.at_work = task
        self._upkeep.live(awake=False)
        try:
            self.handle(task)
        except GivenUp:
            session.counts["rounds given up"] += 1
            session.task = session.task or (None if self._work.is_common else task)
        except (BudgetSpent, StoreFull, GraphError) as error:
            if isinstance(error, BudgetSpent):
                self._work.spending.stop(error)
            session.counts["rounds not released"] += 1
            logger.warning("round not released %s", fields(round=task.round, why=error))
        else:
            is_final, run = task.ask == END, session.seen.run
            session.counts["final models" if is_final else "rounds"] += 1
            told = {"run": run, "round": task.round, "base": task.base}
            logger.info(
                "final model taken over %s" if is_final else "round learned %s",
                fields(**told, seconds=session.now - begun),
            )
        finally:
            session.at_work = None
            self._upkeep.live(awake=True)

    def handle(self, event: Task, asked: Task | None = None) -> None:
        """Think, protect, charge, save, send: what leaves has been paid for and kept before, once.

        Parameters that the canary finds at fault are given up: the last good ones stay, the task
        counts as done, and no answer leaves, unless ``_may_leave``.

        Args:
            event: What the half is told.
            asked: The task it answers, where that is another one.

        Raises:
            BudgetSpent: Or ``StoreError``: then nothing has happened.
            GivenUp: A newer task came, or nothing may leave now: the same.
        """
        work, session, spending = self._work, self._session, self._work.spending
        state, effects = work.learner.learn(work.state, event)
        if asked is not None and not effects:  # the task it answers is as open as before
            work.state = state
            return
        task = asked or event
        is_returned = bool(work.fault_of(state))
        if is_returned:
            effects = effects if self._may_leave(state, task) else ()
            state = work.last_good()
        updates = [e for e in effects if isinstance(e, Update) and work.shares]
        if updates and not spending.may_release:
            raise GivenUp  # paused, or with numbers that are not confirmed yet
        charges, account = spending.cost(len(updates))
        released = [spending.mechanism.release(update) for update in updates]
        numbers = session.up.numbers
        numbers = replace(numbers, spent=numbers.spent + len(released))
        entry = self._seal(released[0], task, numbers) if released else None
        numbers = replace(numbers, seq=entry.seq) if entry is not None else numbers
        learned = record(state, task, work.learner, session.seen)
        self._store.save(
            learned=learned,
            numbers=numbers,
            entry=entry,
            charges=charges,
            facts=work.returns if is_returned else None,
        )
        work.stand(state)
        spending.paid(account)
        session.learned((learned.round, *learned.leaves["turn"]), learned.version)
        if entry is not None:
            session.released(entry)

    def _may_leave(self, state: Any, task: Task) -> bool:  # noqa: ANN401 - as above
        """Whether an answer leaves though its parameters are at fault.

        Where the model that came was at fault, and training made it no worse; but not where both
        ends compute on with the answer. And where noise is what hides the readings in an answer:
        its absence would tell something that no account knows.
        """
        work = self._work
        if work.spending.mechanism.plan.hides_answers:
            return True
        return not work.ask.mirrored and work.learner.mends(state, work.state, task)

    def keep(self, state: Any, leaves: Mapping[str, Leaf], releases: int) -> None:  # noqa: ANN401 - the half's own type
        """Charge what neighbours are about to be told, and save it with what was learned.

        Args:
            state: Of the half.
            leaves: What the exchange must remember.
            releases: How often something is told.

        Raises:
            BudgetSpent: Or ``StoreFull``: then nothing has happened.
        """
        work, session, spending = self._work, self._session, self._work.spending
        charges, account = spending.cost(releases)
        numbers, seen = session.up.numbers, session.seen
        numbers = replace(numbers, spent=numbers.spent + releases)
        me = work.learner.config.id
        here = Task(me, seen.round, "", seen.step, seen.version, attempt=seen.attempt)
        learned = record(state, here, work.learner, seen)
        learned = replace(learned, leaves={**learned.leaves, "gossip": leaves})
        self._store.save(learned=learned, numbers=numbers, charges=charges)
        session.up = replace(session.up, numbers=numbers)
        work.state = state
        spending.paid(account)
        spending.mechanism.begin()
