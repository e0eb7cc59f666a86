"""Client: the device's one stateful shell. It owns clocks, disk and keys; it knows no method.

Crash anywhere: either the round was saved together with its release, and the same bytes go out, or
nothing happened and the same round is learned again to the same bits.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from edge_sdk.allowance import Allowance
from edge_sdk.charge import Charge
from edge_sdk.clock import Clock, SystemClock
from edge_sdk.config import Config
from edge_sdk.downlink import Wanted
from edge_sdk.errors import EdgeError, StoreFull
from edge_sdk.forecast import Forecast
from edge_sdk.intervals import Kept
from edge_sdk.learner import Bundle, Learner
from edge_sdk.methods import METHODS, Factory
from edge_sdk.methods.steps import TRAIN, Fitted
from edge_sdk.neighbours import Neighbours, Shell
from edge_sdk.opening import (
    NEIGHBOURS,
    account_of,
    connect,
    hood_of,
    keep_intervals,
    load_ring,
    load_signer,
    open_bundle,
    recall,
    set_up,
    take_over,
)
from edge_sdk.playing import GivenUp, Playing
from edge_sdk.privacy.ledger import Account, BudgetSpent
from edge_sdk.program import fields
from edge_sdk.questions import Found
from edge_sdk.runtime import GraphError
from edge_sdk.series import Reading, Series
from edge_sdk.session import SPENT, Connect, Session
from edge_sdk.settings import seconds
from edge_sdk.store import Learned, Store
from edge_sdk.thrift import Thrift, peak_kib
from edge_sdk.uplink import Entry, Numbers, Pace
from edge_sdk.wire import messages as m
from edge_sdk.wire.codec import Leaf, encode, pack_tensor
from edge_sdk.wire.envelope import AGGREGATOR, digest, prove
from edge_sdk.wire.errors import Refused
from edge_sdk.wire.method import CONTRACTS, END, Ask, Task, Update, answered
from edge_sdk.wire.transport import Transport

logger = logging.getLogger(__name__)

_READINGS_AT_ONCE = 1024  # kept in memory until so many came, or a minute passed: flash wears out
_BOOK_EVERY = 3600.0  # s until it is kept how much was written
_LONGEST = 900.0  # s between two questions to a neighbour that does not answer
_TOLERANCE = 300.0  # seconds a reading may lie ahead of the clock
_NO_CLOCK_BEFORE = 1_577_836_800_000  # a wall clock before 2020 is none: readings are not judged
_ALONE = 2**40  # rounds a device sets itself are numbered from here: no server gets that far


class Client(Playing):
    """A device that observes, learns when asked, forecasts, and shares what it must.

    Single-threaded; everything happens inside ``tick``. Closing it is a goodbye, not a loss.

    Args:
        config: What the device is told.
        transport: A link, or what makes one from our last words; None connects as configured.
        clock: Where time is read from.
        methods: The device halves by name; a method of one's own is one more entry.
        stopping: Asked between two minibatches; true lets go of the training at hand.

    Raises:
        EdgeError: A key, bundle or store that cannot be used.
    """

    def __init__(
        self,
        config: Config,
        *,
        transport: Transport | Connect | None = None,
        clock: Clock | None = None,
        methods: Mapping[str, Factory] = METHODS,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.config = config
        self._clock = clock or SystemClock()
        self._methods, self._stopping = methods, stopping
        self._signer = load_signer(config.keys.device)
        ring = load_ring(config.keys)
        self._store = Store.open(config.state)
        try:
            self._session = Session(config, self._store, self._clock, self._signer, ring)
            self._flushed = self._alone_at = self._session.now
            booked = Allowance(self._store.fact("flash day"), self._store.fact("flash"))
            self._booked = self._session.now
            woken = Allowance(self._store.fact("wake day"), self._store.fact("wake"))
            self._thrift = Thrift(config.means, booked, woken, now=self._session.now)
            self._state: Any = None
            self.play_nothing()
            self._alone_state: Fitted | None = None
            self._kept: Kept | None = None
            self._account = Account()
            self._watched: tuple[int, int | None] | None = None
            self._work_with(open_bundle(config, self._session.announced), self._session.announced)
            self._neighbours: Neighbours | None = None
            self._recall()
            self._gather()
            self._charge_start()
            self._store.set_facts(starts=self._store.fact("starts") + 1)
            self._session.connect(_maker(config, transport, self._session.judged_at))
        except BaseException:
            self._store.close()
            raise

    # --- what a user calls ------------------------------------------------------------------------

    def observe(self, reading: Reading) -> None:
        """Take one measurement in. Never raises for what a source may have read."""
        wall = self._clock.wall()
        latest = wall / 1000 + _TOLERANCE if wall > _NO_CLOCK_BEFORE else float("inf")
        seen = self._learner.observe(reading, latest)
        self._session.counts["readings " + seen] += 1
        self._flush_in_time()

    def tick(self, timeout: float = 0.0) -> None:
        """Serve the network for at most ``timeout`` seconds, and learn if there is a task.

        Training takes as long as it takes; the network is served between two minibatches. On a
        full disk nothing new is taken in or released; what is owed stays.
        """
        try:
            self._turn(timeout)
        except StoreFull as error:  # nothing was changed, nothing was said, nothing acknowledged
            if not self._session.counts["disk full"]:
                logger.warning("disk full %s", fields(why=error))
            self._session.counts["disk full"] += 1
        is_busy = bool(self._session.up.entries) or self._opened is not None
        self._live(awake=self._session.is_linked and is_busy)

    def _live(self, *, awake: bool) -> None:
        """Book how the time since the last call was spent."""
        self._thrift.live(self._session.now, self._session.time_for_days, awake=awake)

    def _turn(self, timeout: float) -> None:
        session = self._session
        self._flush_in_time()
        session.serve(0.0 if self._has_work else self._until_exchange(timeout))
        if session.lost:
            self._begin_anew()
        self._watch_budget()
        if session.bundle is not None:
            self._follow(session.bundle)
        self._play()
        self._exchange()
        if session.task is not None and self._is_answerable(session.task):
            task, session.task = session.task, None
            if self._plays and task.ask != END:
                self._open(task)
            else:
                self._attempt(task)
        elif self._is_time_alone():
            self._learn_alone()

    @property
    def _has_work(self) -> bool:
        """Whether there is more to do than to listen."""
        session = self._session
        ready = session.task is not None and self._is_answerable(session.task)
        return ready or session.bundle is not None or bool(session.calls.waiting)

    def forecast(self) -> Forecast:
        """Forecast what follows the newest reading; ``source`` says by which means."""
        state = self._state if self._alone_state is None else self._alone_state
        return self._learner.forecast(state)

    @property
    def is_ready(self) -> bool:
        """Whether the readings reach far enough back for the model to forecast."""
        return self._learner.is_ready

    @property
    def now(self) -> float:
        """Seconds of the monotonic clock this client lives by."""
        return self._session.now

    @property
    def is_linked(self) -> bool:
        """Whether the broker has accepted us."""
        return self._session.is_linked

    @property
    def why_stopped(self) -> str:
        """Why no answers leave now, such as ``command`` or ``budget``; empty if they do."""
        return self._session.why_stopped

    @property
    def is_done(self) -> bool:
        """Whether the run has ended, its final model is here, and nothing is owed."""
        among = self._neighbours
        return self._session.is_done if among is None else among.is_done

    @property
    def learner(self) -> Learner:
        """The bundle at work on the readings: for whoever judges forecasts over a longer span."""
        return self._learner

    @property
    def state(self) -> Any:  # noqa: ANN401 - the half's own type
        """What the half has learned so far."""
        return self._state

    def _flush_in_time(self) -> None:
        """Flush when readings have waited long, though none may follow them for an hour."""
        overdue = self._session.now - self._flushed > self._thrift.patience
        waiting = self._learner.series.unsaved
        if waiting >= _READINGS_AT_ONCE or (waiting and overdue):
            self.flush()

    def flush(self) -> None:
        """Write readings that only memory holds, and what the intervals were made of them."""
        rows = self._learner.series.pending()
        self._flushed = self._session.now
        self._keep_intervals()
        if self._session.now - self._booked > _BOOK_EVERY:
            self._booked = self._session.now
            self._book()
        if not rows:
            return
        try:
            self._store.add_readings(rows)
        except StoreFull:  # readings go first; what is owed stays
            self._session.counts["readings not kept"] += len(rows)
        self._learner.series.saved(rows)

    @property
    def step(self) -> int:
        """Seconds of the grid that readings are kept on."""
        return self._learner.series.step

    def remembered(self, name: str) -> bytes | None:
        """Return what a source wrote down before a restart, or None."""
        return self._store.paper(f"source {name}")

    def remember(self, notes: Mapping[str, bytes]) -> None:
        """Write readings, and after them what sources must know after a restart, by name.

        In this order, so that a note never speaks of readings that were lost.
        """
        self.flush()
        try:
            for name, note in notes.items():
                if note != self.remembered(name):
                    self._store.file_paper(f"source {name}", note)
        except StoreFull:
            self._session.counts["notes not kept"] += 1

    def _keep_intervals(self) -> None:
        """Write the calibration if it moved; a lost one is made again from the readings."""
        kept = self._learner.kept
        if kept is None or kept is self._kept:
            return
        try:
            keep_intervals(kept, self._store)
        except StoreFull:
            self._session.counts["calibrations not kept"] += 1
        else:
            self._kept = kept

    def status(self) -> dict[str, Any]:
        """Say how things are, in plain words and numbers. Nothing measured is in it."""
        session, learner = self._session, self._learner
        return {
            "id": self.config.id,
            "fleet": self.config.fleet,
            "linked": session.is_linked,
            "ready": session.up.is_ready,
            "stopped": session.why_stopped,
            "bundle": learner.manifest.name,
            "method": learner.role.method,
            "run": session.seen.run,
            "round": session.seen.round,
            "version": session.seen.version,
            "life": session.up.numbers.life,
            "spent": session.up.numbers.spent,
            "outbox": len(session.up.entries),
            "windows": len(learner.windows()),
            "can_forecast": self.is_ready,
            "alone": self._alone_state is not None,
            "privacy": learner.mechanism.says,
            "budget": self._account.summary(learner.mechanism.plan.release()),
            **({} if self._neighbours is None else {"neighbours": self._neighbours.status()}),
            "held": self._thrift.held,
            "counts": {**session.counts, **session.traffic()},
        }

    def close(self) -> None:
        """Say goodbye: readings are written, the status says offline, the file is free."""
        self.flush()
        self._book()
        self._session.close()
        self._store.close()

    def _book(self) -> None:
        """Keep what was written today, and the most memory there ever was, for the report."""
        self._thrift.look(float("inf"), self._clock.wall() / 1000, self._session.time_for_days)
        flash, wake = self._thrift.flash, self._thrift.wake
        told = {"flash day": flash.day, "flash": flash.used}
        told |= {"wake day": wake.day, "wake": wake.used}
        with contextlib.suppress(StoreFull):
            self._store.set_facts(**told, peak=peak_kib())

    def __enter__(self) -> Client:  # noqa: PYI034 - nobody derives from it
        """Use it in a ``with`` block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    # --- the device's path of a round -------------------------------------------------------------

    def handle(self, event: Task, asked: Task | None = None) -> None:
        """Think, protect, charge, save, send: what leaves has been paid for and kept before, once.

        Args:
            event: What the half is told.
            asked: The task it answers, where that is another one.

        Raises:
            BudgetSpent: Or ``StoreError``: then nothing has happened.
        """
        state, effects = self._learner.learn(self._state, event)
        if asked is not None and not effects:  # the task it answers is as open as before
            self._state = state
            return
        event = asked or event
        updates = [e for e in effects if isinstance(e, Update) and self._shares]
        if updates and not self._may_leave():
            raise GivenUp  # paused, or with numbers that are not confirmed yet
        charges = self._charges(len(updates))
        account = self._account.charge(*charges) if updates else self._account.plus(*charges)
        released = [self._learner.mechanism.release(update) for update in updates]
        numbers = self._session.up.numbers
        numbers = replace(numbers, spent=numbers.spent + len(released))
        entry = self._sealed(released[0], event, numbers) if released else None
        numbers = replace(numbers, seq=entry.seq) if entry is not None else numbers
        learned = self._learned(state, event)
        self._store.save(learned=learned, numbers=numbers, entry=entry, charges=charges)
        self._state, self._alone_state, self._account = state, None, account
        if self._learner.mechanism.origin == "input":  # which books new readings by itself
            self._account = account_of(self._store, self._learner.mechanism.plan)
        self._session.learned((learned.round, *learned.leaves["turn"]), learned.version)
        if entry is not None:
            self._session.released(entry)

    # --- among neighbours -------------------------------------------------------------------------

    def _gather(self) -> None:
        """Set up the exchange with the neighbours that the run's method has, if it has some."""
        role, seen = self._learner.role, self._session.seen
        self._neighbours = None
        hood = hood_of(self.config, self._store, role.method, seen.run)
        if hood is None:
            self._session.meet({})
            return
        learned = self._store.learned()
        is_ours = learned is not None and learned.run == seen.run
        self._neighbours = Neighbours(
            hood,
            role.method,
            me=self.config.id,
            run=seen.run,
            spec=self._learner.spec,
            session=self._session,
            store=self._store,
            shell=Shell(lambda: self._state, self._think, self._stand, self._keep),
            pace=Pace(max(seconds(self.config.pace.answer), hood.deadline / 4), _LONGEST),
            kept=learned.leaves.get("gossip") if learned is not None and is_ours else None,
        )

    def _exchange(self) -> None:
        """Go on with the neighbours; a device that may tell nothing more only listens."""
        session = self._session
        if session.begin is not None:
            task, session.begin = session.begin, None
            if self._neighbours is None or task.round > self._neighbours.hood.epoch:
                self._store.file_paper(NEIGHBOURS, encode(task))
                self._gather()
        if self._neighbours is None:
            return
        try:
            self._neighbours.serve()
        except BudgetSpent as error:
            self._stop_telling(error)

    def _until_exchange(self, timeout: float) -> float:
        if self._neighbours is None:
            return timeout
        return max(0.0, min(timeout, self._neighbours.next_due - self._session.now))

    def _think(self, state: Any, task: Task) -> Any:  # noqa: ANN401 - the half's own type
        return self._learner.play(state, task)[0]

    def _stand(self, state: Any) -> None:  # noqa: ANN401 - the half's own type
        self._state, self._alone_state = state, None

    def _keep(self, state: Any, leaves: Mapping[str, Leaf], releases: int) -> None:  # noqa: ANN401 - as above
        """Charge what neighbours are about to be told, and save it with what was learned."""
        session, mechanism = self._session, self._learner.mechanism
        charges = self._charges(releases)
        account = self._account.charge(*charges) if releases else self._account.plus(*charges)
        spent = session.up.numbers.spent + releases
        numbers = replace(session.up.numbers, spent=spent)
        seen = session.seen
        here = Task(self.config.id, seen.round, "", seen.step, seen.version, attempt=seen.attempt)
        learned = self._learned(state, here)
        learned = replace(learned, leaves={**learned.leaves, "gossip": leaves})
        self._store.save(learned=learned, numbers=numbers, charges=charges)
        session.up = replace(session.up, numbers=numbers)
        self._state, self._account = state, account
        mechanism.begin()

    def _attempt(self, task: Task) -> None:
        """Learn one round; give it up without a trace where it cannot be finished or paid for."""
        session, begun = self._session, self._session.now
        is_final, session.at_work, self._opened = task.ask == END, task, None
        self._live(awake=False)
        try:
            self.handle(task)
        except GivenUp:
            session.counts["rounds given up"] += 1
            session.task = session.task or (None if self._is_common else task)
        except (BudgetSpent, StoreFull, GraphError) as error:
            if isinstance(error, BudgetSpent):
                self._stop_telling(error)
            session.counts["rounds not released"] += 1
            logger.warning("round not released %s", fields(round=task.round, why=error))
        else:
            session.counts["final models" if is_final else "rounds"] += 1
            logger.info(
                "final model taken over %s" if is_final else "round learned %s",
                fields(
                    run=session.seen.run,
                    round=task.round,
                    base=task.base,
                    seconds=session.now - begun,
                ),
            )
        finally:
            session.at_work = None
            self._live(awake=True)

    @property
    def _shares(self) -> bool:
        """Whether answers go to the fleet: none does where nothing is shared."""
        return self._learner.spec.shared_size > 0

    @property
    def _ask(self) -> Ask:
        """What the run's method asks, as the contract says."""
        return answered(CONTRACTS[self._learner.role.method])[1]

    @property
    def _is_common(self) -> bool:
        """Whether everybody is asked at once: then a newer round makes an older one useless."""
        return not self._ask.personal

    def _charge_start(self) -> None:
        """Charge what a restored image may have forgotten, if the configuration says so."""
        count = self.config.privacy.budget.at_start
        if not count:
            return
        up, plan = self._session.up, self._learner.mechanism.plan
        numbers = replace(up.numbers, spent=up.numbers.spent + count)
        charges = plan.unseen(self._clock.wall(), count)
        self._store.charge(numbers, charges)
        self._session.up = replace(up, numbers=numbers)
        self._account = self._account.plus(*charges)

    def _watch_budget(self) -> None:
        """Stop answering when nothing more may be told, and say so once."""
        spent = self._session.up.numbers.spent
        if (spent, self._session.most) == self._watched:
            return
        self._watched = (spent, self._session.most)
        plan = self._learner.mechanism.plan
        unseen = plan.unseen(self._clock.wall(), spent - self._account.told)
        self._account = replace(self._account, most=plan.most(self._session.most))
        if self._account.plus(*unseen).has_room(plan.release()):
            self._session.forbidden = ""
        else:
            self._stop_telling("nothing more may be told")

    def _stop_telling(self, why: object) -> None:
        if not self._session.forbidden:
            logger.warning("budget spent, learning alone %s", fields(why=why))
        self._session.forbidden = SPENT

    def _may_leave(self) -> bool:
        """Whether an answer may be released at this very moment."""
        return self._session.up.may_release and not self._session.why_stopped

    def _charges(self, releases: int) -> tuple[Charge, ...]:
        """Return what this round costs, and what left unseen before a lost store did."""
        mechanism, wall = self._learner.mechanism, self._clock.wall()
        unseen = self._session.up.numbers.spent - self._account.told
        return (*mechanism.plan.unseen(wall, unseen), *mechanism.cost(wall, releases))

    def _sealed(self, update: Update, task: Task, numbers: Numbers) -> Entry:
        """Number, encode and sign an update: from here on its bytes never change."""
        spec = self._learner.spec
        ask = CONTRACTS[self._learner.role.method][task.ask]
        values = dict(update.values)
        said = m.Update(
            run=self._session.seen.run,
            round=update.round,
            base=update.base,
            life=numbers.life,
            seq=numbers.seq + 1,
            spent=numbers.spent,
            spec=spec.digest,
            part=ask.up.value,
            enc=ask.enc,
            n=int(values.pop("n", 0)),
            vals=values,
            check=update.check or None,
            blob=pack_tensor(update.vector, ask.enc),
        )
        body = encode(said)
        proof = prove(
            digest(body),
            kind=said.kind,
            sender=self.config.id,
            recipient=AGGREGATOR,
            fleet=self.config.fleet,
            signer=self._signer,
        )
        return Entry(
            life=said.life,
            seq=said.seq,
            body=body,
            proof=proof,
            run=said.run,
            round=said.round,
            base=said.base,
            spec=said.spec,
            spent=said.spent,
        )

    def _learned(self, state: Any, task: Task) -> Learned:  # noqa: ANN401 - the half's own type
        """Describe what is to be saved; a round set by ourselves does not count as the run's."""
        seen, scale = self._session.seen, self._learner.scale
        is_ours = task.round >= _ALONE
        turn = (seen.attempt, seen.step) if is_ours else (task.attempt, task.step)
        return Learned(
            run=seen.run,
            round=seen.round if is_ours else task.round,
            version=seen.version if is_ours else task.base,
            spec=self._learner.spec.whole_digest,
            leaves={
                "half": state.arrays(),
                "scale": [scale.low, scale.high] if scale else [],
                "turn": list(turn),
                "noise": self._learner.mechanism.origin,
            },
        )

    def _is_answerable(self, task: Task) -> bool:
        """Whether a task may be learned now: the final model always may.

        A task of our own is not wasted on a device that has nothing to learn from yet.
        """
        if task.ask == END:
            return True
        if not self._session.may_learn or not self._session.agreed_on(self._ask.enc):
            return False
        if self._held():
            return False
        return self._is_common or len(self._learner.windows()) > 0

    def _between_batches(self) -> None:
        """Serve the network while training; give up what a newer round or a stop made useless.

        Raises:
            GivenUp: Nothing of this round has happened.
        """
        self._session.serve(0.0)
        if self._stopping() or self._is_called or self._session.bundle is not None:
            raise GivenUp

    @property
    def _is_called(self) -> bool:
        """Whether a newer task waits that this device may answer, or the final model."""
        task = self._session.task
        return task is not None and (task.ask == END or not self._session.forbidden)

    # --- alone ------------------------------------------------------------------------------------

    def _is_time_alone(self) -> bool:
        """Whether to set oneself a round: nothing is shared, or nobody was heard for long."""
        session, now = self._session, self._session.now
        if self._neighbours is not None and not session.forbidden:
            return False
        patience = seconds(self.config.accept.alone_after)
        if self._shares and not session.forbidden and now - session.heard_at < patience:
            return False
        every = seconds(self.config.pace.alone_every)
        due = now - self._alone_at >= every and len(self._learner.windows()) > 0
        return due and not self._held()

    def _held(self) -> str:
        """Say why nothing is learned now, though it could be: what the device cannot spare."""
        session, before = self._session, self._thrift.held
        held = self._thrift.look(session.now, self._clock.wall() / 1000, session.time_for_days)
        if held and held != before:
            logger.info("learning waits %s", fields(why=held))
        return held

    def _learn_alone(self) -> None:
        """Train on a copy that forecasts until the fleet is back; for good if nothing is shared."""
        self._alone_at = self._session.now
        self._live(awake=False)
        rounds = self._store.fact("alone")
        learner, pace = self._learner, self.config.pace
        training, state = learner.manifest.training, self._alone_state or self._state
        task = Task(
            to=self.config.id,
            round=_ALONE + rounds,
            ask=TRAIN,
            values={
                "steps": float(pace.alone_steps or training.steps),
                "rate": pace.alone_rate or training.rate,
            },
            arrays={"w": learner.spec.shared(learner.vector(state))},
        )
        if not self._shares:
            self._attempt(task)
        else:
            try:
                self._alone_state = learner.learn_alone(state, task)
            except GivenUp:
                return
        self._live(awake=True)
        self._session.counts["rounds alone"] += 1
        self._store.set_facts(alone=rounds + 1)

    # --- bundles and runs -------------------------------------------------------------------------

    def _work_with(
        self, bundle: Bundle, announced: m.Bundle | None, series: Series | None = None
    ) -> None:
        """Put a bundle to work as the announced run, or the bundle alone, asks for."""
        learner = set_up(
            self.config,
            self._store,
            bundle,
            announced,
            self._methods,
            present=series,
            clock=self._clock.wall,
        )
        learner.turn = self._between_batches
        self._opened = self._session.at_work = None
        self._learner = learner
        self._account = account_of(self._store, learner.mechanism.plan)
        self._watched = None
        self._session.holds = bundle.digest
        self._session.wanted = Wanted(
            learner.spec.digest,
            learner.spec.shared_size,
            CONTRACTS[learner.role.method],
            self.config.accept.max_steps,
        )

    def _recall(self) -> None:
        """Take over what was learned before, if it was learned for this layout."""
        self._state, learned = recall(self._learner, self._store)
        if learned is not None and learned.run == self._session.seen.run:
            turn = (learned.round, *learned.leaves.get("turn", (0, 0)))
            self._session.learned(turn, learned.version)

    def _begin_anew(self) -> None:
        """Forget what was learned alone since a store was lost: its noise is not told under."""
        self._session.lost = False
        self._learner.forget()
        self._alone_state = None
        self._recall()

    def _follow(self, found: Found) -> None:
        """Put an announced run into force; install its bundle first if it is another one."""
        self.flush()
        self._session.bundle = None
        try:
            bundle = take_over(self.config, found, self._learner.bundle)
            self._work_with(bundle, found.announced, self._learner.series)
        except (EdgeError, Refused) as error:
            self._session.counts["bundles refused"] += 1
            logger.warning("bundle refused %s", fields(name=found.announced.name, why=error))
            return
        self._session.adopt(found)
        self._recall()
        self._gather()
        logger.info(
            "run in force %s",
            fields(
                run=found.announced.run, bundle=found.announced.name, method=found.announced.method
            ),
        )
        self._session.reconsider()


def _maker(
    config: Config, transport: Transport | Connect | None, judged_at: Callable[[], float | None]
) -> Connect:
    if transport is None:
        return lambda will: connect(config, will, judged_at)
    return transport if callable(transport) else lambda _will: transport
