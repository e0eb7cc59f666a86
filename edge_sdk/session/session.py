"""One device's conversation with its fleet: proves what arrives, keeps what must be kept, answers.

``Session`` drives the two pure sides (``uplink``, ``downlink``) over a link and the store. What it
finds out for the learner lies in ``task`` and ``bundle`` until the client takes it.
"""

from __future__ import annotations

import logging
import resource
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from edge_sdk.app.cli import fields
from edge_sdk.app.clock import DAY, Clock, ServerTime
from edge_sdk.app.settings import seconds
from edge_sdk.bundle import SDK_VERSION
from edge_sdk.config import Config
from edge_sdk.limits.daily_quota import DailyQuota
from edge_sdk.limits.resource_limits import lesser, means_of
from edge_sdk.session.announcements import KeyRing
from edge_sdk.session.command_log import CommandLog
from edge_sdk.session.poison_messages import SetAside, digest_of, is_defect
from edge_sdk.session.signed_link import SignedLink, VerifiedMessage, Will
from edge_sdk.session.task_inbox import TaskInbox, filed
from edge_sdk.store.store import DeviceStore
from edge_sdk.wire.contract.method import Signal
from edge_sdk.wire.errors import Reason, Refused
from edge_sdk.wire.keys import Signer
from edge_sdk.wire.link.transport import LinkDown, LinkUp, Transport
from edge_sdk.wire.protocol import messages as m
from edge_sdk.wire.protocol import outbox as uplink
from edge_sdk.wire.protocol.array_fragments import cut
from edge_sdk.wire.protocol.outbox import (
    EntrySettled,
    Outbox,
    OutboxEntry,
    OutboxStep,
    RefusalReceived,
    RetryPolicy,
    SendChunk,
    SendWhole,
    StepInputs,
)

logger = logging.getLogger(__name__)

Connect = Callable[[Callable[[], Will]], Transport]
"""Makes a link from a function that says our last words."""

SPENT = "budget"
"""Why a device answers nothing any more: what it may tell about itself is told."""

_HOURLY = 3600.0
_LOST = 30.0  # s without what must exist before we ask for it again; doubles
_LOST_MOST = 900.0

_ENDS = {
    Reason.TWO_LIVES: "another process uses this name and key: stop it, and enrol this one again",
    Reason.UPGRADE_REQUIRED: "install a newer version",
    Reason.REVOKED: "ask the operator; enrol this device again",
}
"""After which refusals this process answers nothing any more, and what to do about it."""


class Session(TaskInbox):
    """Everything between the link and the learner. Single-threaded, driven by ``serve``.

    Attributes:
        up: The uplink's state; its numbers and entries are always saved.
        forbidden: Why the client lets nothing leave; empty if it does.
        lost: Whether it just came out that a store before this one was lost.
        most: Releases that the operator allows in all; None is as many as the configuration does.
        mail: What neighbours said, in order; taken by who exchanges models with them.
        neighbours: Their raw public keys by id.
        exchanged: Counters of the exchanges, for the hourly report.
        linked_at: When the link came up last.
        set_aside: What met a defect before and is passed over.
    """

    def __init__(
        self, config: Config, store: DeviceStore, clock: Clock, signer: Signer, ring: KeyRing
    ) -> None:
        """Read what must not be forgotten; ``connect`` makes the link."""
        post = SignedLink(signer, fleet=config.fleet, device=config.id)
        super().__init__(config, store, clock, post)
        self.set_aside = SetAside(store, self.counts)
        self._ring = replace(ring, announced=filed(store, m.KeysMessage, "keys"))
        base = seconds(config.pace.answer)
        self.up = Outbox(
            numbers=store.numbers(),
            entries=tuple(map(post.owned, store.outbox())),
            conn=store.fact("conn"),
            sdk=".".join(map(str, SDK_VERSION)),
            pace=RetryPolicy(base, 90 * base),
        )
        self._kept = self.up.entries
        floor = max(ServerTime().floor, store.fact("floor"))
        self._time = ServerTime(floor, before=store.fact("floor before"))
        self._doubts_at = self.now
        self._command_log = CommandLog(store)
        self._started = self._hour = self.heard_at = self.now
        self._lost_at, self._lost_wait = self.now + _LOST, _LOST
        self._allowance, self._booked = DailyQuota(store.fact("day"), store.fact("used")), 0
        self._own_quota = means_of(config.means).link
        self._conn_said = self._said_down = False
        self.forbidden, self.lost = "", False
        self.mail: deque[VerifiedMessage] = deque()
        self.neighbours: Mapping[str, bytes] = {}
        self.exchanged: Mapping[str, int] = {}
        self.linked_at = self.now
        self._is_open = False
        allowed = store.fact("releases allowed", -1)
        self.most = allowed if allowed >= 0 else None

    def connect(self, make: Connect) -> None:
        """Make the link and start connecting."""
        self._post.link, self._is_open = make(self.last_words), True
        self._post.link.open()

    @property
    def why_stopped(self) -> str:
        """Why nothing is learned for the fleet now; empty if nothing forbids it."""
        if self._held_up:
            return "command"
        return self._phase if self._phase != "train" else self.why_silent

    @property
    def why_silent(self) -> str:
        """Why nothing made of readings may leave, in any phase of the run; empty if it may."""
        if self._held_up:
            return "command"
        if self.forbidden:
            return self.forbidden
        if self.is_rationed:
            return "quota"
        return self.up.stopped.name if self.up.stopped is not None else ""

    @property
    def is_rationed(self) -> bool:
        """Whether the bytes of this day are used up; receipts, commands and status go on."""
        welcome = self.up.welcome
        told = None if welcome is None else welcome.quota
        return self._allowance.is_spent(lesser(told, self._own_quota))

    @property
    def time_for_days(self) -> int:
        """Server time in Unix milliseconds; unheard, the latest there ever was and our uptime."""
        now = self._time.now(self.now)
        return self._time.floor + int(1e3 * (self.now - self._started)) if now is None else now

    @property
    def may_learn(self) -> bool:
        """Whether the task at hand may be answered now."""
        return (
            self.task is not None
            and not self.why_stopped
            and not (self.is_over and self.is_common)
            and self.up.may_release
        )

    @property
    def may_ask(self) -> bool:
        """Whether the aggregator may be asked for something now."""
        return self.is_linked and self.up.is_ready and not self.is_rationed

    def agreed_on(self, enc: str) -> bool:
        """Whether an answer may have this encoding: the least one, or one we were allowed."""
        welcome = self.up.welcome
        return enc == "f4" or (welcome is not None and enc in welcome.caps)

    @property
    def is_done(self) -> bool:
        """Whether the fleet's present run has ended, its model was taken over, nothing is owed.

        A retained manifest may be that of an earlier run; the welcome, bound to this process's own
        hello, says which run is present.
        """
        manifest, welcome = self._manifest, self.up.welcome
        return (
            manifest is not None
            and welcome is not None
            and manifest.run == welcome.run
            and self._phase == "stop"
            and manifest.version <= self.seen.version
            and self.task is None
            and not self.up.entries
        )

    # --- driving ----------------------------------------------------------------------------------

    def serve(self, timeout: float) -> None:
        """Take in everything that arrived, then say everything that is due."""
        for happening in self._post.poll(self._until_due(timeout), self._key_of):
            match happening:
                case LinkUp(max_payload=most, dates_by=dates_by):
                    self._link_up(most, dates_by)
                case LinkDown(why=why):
                    self._link_down(why)
                case VerifiedMessage():
                    self._take_in(happening)
        if not self.is_rationed:
            self.follow(uplink.tick(self.up, self.chance()))
            self._go_on_fetching()
            self._ask_for_what_was_lost()
        self.calls.tick(self.now)
        self._each_hour()
        self._post.drain()
        self._ration()

    def follow(self, turn: OutboxStep) -> None:
        """Save what the uplink changed, then say what it wants said, then count."""
        after = turn.uplink
        if after.numbers != self.up.numbers or after.entries != self._kept:
            self._store.keep(after.numbers, before=self._kept, after=after.entries)
            self._kept = after.entries
        self.up = after
        for say in turn.says:
            self._say(say)
        for note in turn.notes:
            self._note(note)

    def released(self, entry: OutboxEntry) -> None:
        """Send an entry that the store already holds."""
        self._kept = (*self._kept, entry)
        self.follow(uplink.release(self.up, entry, self.chance()))

    def signal(self, said: Signal, enc: str) -> None:
        """Send an answer that perishes, in pieces of whole rows; what cannot be sent is gone.

        Raises:
            Refused: BAD_TENSOR: a scalar that is not finite; then nothing is sent.
        """
        if self.is_rationed or not self.is_linked:
            self.counts["signals not sent"] += 1
            return
        whole: dict[str, Any] = {
            "run": self.seen.run,
            "round": said.round,
            "ask": said.ask,
            "attempt": said.attempt,
            "step": said.step,
            "vals": dict(said.values),
        }
        size = 0
        if not said.array.size:
            size = self._post.say(m.SignalMessage(**whole))
        for piece in list(cut(said.array, enc)) if said.array.size else ():
            shape = tuple(map(int, said.array.shape))
            size += self._post.say(
                m.SignalMessage(**whole, enc=enc, shape=shape, **piece._asdict())
            )
        self.counts["signals"] += 1
        self.counts[f"bytes up {said.ask}"] += size

    def tell(self, neighbour: str, message: m.PeerMessage | m.SettleMessage) -> None:
        """Say something to a neighbour; what cannot be said now is asked for again."""
        self.counts[f"bytes to neighbours {message.kind}"] += self._post.tell(neighbour, message)

    def meet(self, neighbours: Mapping[str, bytes]) -> None:
        """Listen to these neighbours from now on, and to nobody else."""
        self.neighbours = neighbours
        heard, self._post.hears_peers = self._post.hears_peers, bool(neighbours)
        if neighbours and not heard and self._is_open:
            self._post.subscribe()

    def drop(self, what: str) -> None:
        """Forget what met a defect: a bundle, the open round's turns, or neighbours' words."""
        if what == "bundle":
            self.bundle = None
        elif what == "neighbours":
            self.mail.clear()
        else:
            self.at_work = None
            self.calls.forget()

    def chance(self) -> StepInputs:
        """Lend the uplink the present, a draw and a nonce."""
        return StepInputs(self._rng.random, lambda: secrets.token_bytes(16), self.now)

    def close(self) -> None:
        """Say goodbye."""
        if self.is_linked:
            self._post.announce(self._status("offline"))
            self._post.drain()
            self._post.link.poll(0.0)
        self._post.link.close()
        self._ration()
        self._save_allowance()

    def judged_at(self) -> float | None:
        """Return the time to judge certificates by, or None while the clock may be right.

        It is wrong if it is a day behind what was signed; then that is the best we have.
        """
        signed = max(self._time.floor, self._time.now(self.now) or 0)
        return signed / 1000 if self._clock.wall() + DAY < signed else None

    def judged_else(self) -> float | None:
        """Return one more time to judge certificates by: before the stored one leapt, if it did."""
        return self._time.before / 1000 if self._time.before else None

    def last_words(self) -> Will:
        """What the broker says when we are gone; asked before every CONNECT, each one counted."""
        self._count_connection()
        self._conn_said = True
        return self._post.will(self._status("lost"))

    def traffic(self) -> dict[str, int]:
        """Count payload bytes and refused arrivals since the start."""
        refused = {f"arrived {r.name}": n for r, n in self._post.refused.items()}
        return {"bytes_up": self._post.bytes_up, "bytes_down": self._post.bytes_down, **refused}

    # --- the link ---------------------------------------------------------------------------------

    def _link_up(self, max_payload: int, dates_by: str = "") -> None:
        if not self._conn_said:
            self._count_connection()
        self._conn_said, self.linked_at = False, self.now
        dates = {"certificate_dates_by": dates_by} if dates_by else {}
        logger.info("link up %s", fields(conn=self.up.conn, **dates))
        self._post.subscribe()
        if self._fetch is not None:
            self._fetch.is_open = False  # subscriptions are made anew
        self._post.announce(self._status("online"))
        turn = uplink.linked(self.up, self.chance(), max_payload=max_payload, conn=self.up.conn)
        self.follow(turn)

    def _link_down(self, why: str) -> None:
        """Say once that the link is gone; the attempts in between are for the curious."""
        is_news = self.up.is_linked or not self._said_down
        logger.log(logging.INFO if is_news else logging.DEBUG, "link down %s", fields(why=why))
        self._said_down = True
        self.up = uplink.unlinked(self.up)
        self._post.forget()

    def _count_connection(self) -> None:
        self.up = replace(self.up, conn=min(self.up.conn + 1, 2**32 - 1))
        self._store.set_facts(conn=self.up.conn)

    def _status(self, state: str) -> m.StatusMessage:
        life = self.up.welcome.life if self.up.welcome is not None else 0
        return m.StatusMessage(state=state, life=life, conn=self.up.conn)  # type: ignore[arg-type]

    def _key_of(self, sender: str, kid: bytes) -> bytes | None:
        if sender in self.neighbours:
            return self.neighbours[sender]
        return self._ring.key(sender, kid, self._time.now(self.now))

    def _until_due(self, timeout: float) -> float:
        """Wait no longer than until something is due."""
        if self.is_rationed:
            return timeout
        dues = [uplink.next_due(self.up), self._fetch.next_due if self._fetch else None]
        dues.append(self.calls.next_due)
        soonest = min((due for due in dues if due is not None), default=self.now + timeout)
        return max(0.0, min(timeout, soonest - self.now))

    # --- what arrives -----------------------------------------------------------------------------

    def _take_in(self, letter: VerifiedMessage) -> None:
        if letter.sender in self.neighbours:
            self.heard_at = self.now
            self.mail.append(letter)
            return
        kind, body = letter.message.kind, digest_of(letter.message.kind, letter.body)
        if self.set_aside.holds(body):
            return
        try:
            self._hear(letter)
        except Refused as refused:
            self.refuse(refused, kind)
        except Exception as error:
            if not is_defect(error):
                raise
            self.set_aside.add(kind, body, error)

    def _hear(self, letter: VerifiedMessage) -> None:
        """Sort one proved message to whom it concerns.

        Raises:
            Refused: It is proved and well formed, and not to be followed.
        """
        self.heard_at = self.now
        match letter.message:
            case (
                m.WelcomeMessage()
                | m.FloorMessage()
                | m.GrantMessage()
                | m.ReceiptMessage()
                | m.HaveMessage() as said
            ):
                was_ready = self.up.is_ready
                self._check_leap(said)
                self._look_for_a_loss(said)
                self.follow(uplink.hear(self.up, said, self.chance()))
                if isinstance(said, m.WelcomeMessage) and self.up.is_ready and not was_ready:
                    self._welcomed(said)
            case m.RefusalMessage() as refusal:
                self._refused(refusal)
            case m.PartMessage() | m.ChunkMessage() as piece:
                self._take(piece)
            case m.ModelMessage() | m.TaskMessage() as question:
                self.counts[f"bytes down {getattr(question, 'ask', 'model')}"] += len(letter.body)
                self._heed(question)
            case m.BundleMessage() as announced:
                self._consider_bundle(announced, letter.body)
            case m.KeysMessage() as keys:
                self._follow_keys(keys, letter.body)
            case m.TimeMessage(t=t):
                self._hear_time(t)
            case m.CommandMessage() as command:
                self._obey(command, letter.ref)
            case _:
                raise Refused(Reason.UNKNOWN_KIND, letter.message.kind)

    def _follow_keys(self, keys: m.KeysMessage, body: bytes) -> None:
        """Take the keys over, and ask again for what could not be proved before we had them.

        A broker sends retained messages in any order, and each of them once per subscription.
        """
        before, self._ring = self._ring, self._ring.accept(keys)
        known = before.announced
        anew = known is not None and not set(known.sign) & set(keys.sign)
        self._store.file_paper("keys", body, **({"serial": 0} if anew else {}))
        if anew:  # whoever has another key numbers its announcements anew
            self.seen, self._manifest = replace(self.seen, serial=0), None
        if self._ring != before and self._post.refused[Reason.UNKNOWN_CLIENT]:
            self._post.subscribe()

    def _ask_for_what_was_lost(self) -> None:
        """Ask the broker again for what it retains while that must have been lost on its way."""
        if not self.is_linked or not self._is_in_the_dark:
            self._lost_at, self._lost_wait = self.now + _LOST, _LOST
        elif self.now >= self._lost_at:
            self._lost_wait = min(2 * self._lost_wait, _LOST_MOST)
            self._lost_at = self.now + self._lost_wait
            self.counts["subscribed again"] += 1
            self._post.subscribe()

    @property
    def _is_in_the_dark(self) -> bool:
        """Whether keys, a bundle announcement or a manifest must exist that we never heard."""
        welcome, manifest = self.up.welcome, self._manifest
        if welcome is None:
            return self._ring.announced is None and self._post.refused[Reason.UNKNOWN_CLIENT] > 0
        run = max(welcome.run, manifest.run if manifest is not None else 0)
        announced = self.announced.run if self.announced is not None else 0
        return min(announced, manifest.run if manifest is not None else 0) < run

    def _look_for_a_loss(self, said: object) -> None:
        """If a store was lost, never perturb anew what may have been told under other noise."""
        if not isinstance(said, m.WelcomeMessage) or self.up.greeting is None:
            return
        is_ours = said.hello == self.up.greeting.ref
        if is_ours and self.up.numbers.lost and said.spent > 0:
            wall = self._clock.wall()
            heard = self._time.hear(said.time, self.now, wall=wall, bound=True)
            is_sound = self._ring.is_in_force(said.time)
            since = heard.floor if is_sound else max(self._time.floor, wall)
            self._store.begin_noise_anew(since // 1000)
            self.lost = True

    def _check_leap(self, said: object) -> None:
        """Refuse an answer to our hello whose counters leap to where no device gets.

        Raises:
            Refused: MALFORMED; nothing is taken over, and the hello is said again.
        """
        greeting, numbers = self.up.greeting, self.up.numbers
        match said:
            case m.WelcomeMessage(spent=told):
                name, known, most = "spent", numbers.spent, m.RELEASES_LEAP
            case m.FloorMessage(life=told):
                name, known, most = "life", numbers.life, m.LIFE_LEAP
            case _:
                return
        if greeting is None or said.hello != greeting.ref or told <= known + most:
            return
        if not self.counts["leaps refused"]:
            what = {name: told, "own": known, "most": known + most}
            logger.error("not believed %s", fields(**what, do="enrol this device with a new key"))
        self.counts["leaps refused"] += 1
        raise Refused(Reason.MALFORMED, f"{name} {told} is more than {most} above {known}")

    def _hear_time(self, t: int) -> None:
        """Follow an announced time; if it is behind what we think by a day, ask what is right."""
        known = self._time.now(self.now)
        self._time = self._time.hear(t, self.now, wall=self._clock.wall())
        is_behind = known is not None and t < known - DAY
        if is_behind and self.up.is_ready and self.now >= self._doubts_at:
            self._doubts_at = self.now + _HOURLY
            logger.warning("time in doubt %s", fields(announced=t, known=known))
            self.follow(uplink.greet(self.up, self.chance()))

    def _keep_time(self) -> None:
        kept = self._time.kept(self.now)
        self._store.set_facts(**{"floor": kept, "floor before": self._time.before})

    def _welcomed(self, welcome: m.WelcomeMessage) -> None:
        before = self._time.kept(self.now)
        if self._ring.is_in_force(welcome.time):
            self._time = self._time.hear(
                welcome.time, self.now, wall=self._clock.wall(), bound=True
            )
            self._keep_time()
        else:
            logger.error("time not believed %s", fields(told=welcome.time, why="no key is valid"))
        if abs(self._time.floor - before) > DAY:
            told = {"before": before, "now": self._time.floor, "machine": self._clock.wall()}
            logger.warning("stored time changed %s", fields(**told))
        lowered = self._command_log.lower(welcome.cmd)
        if lowered is not None:
            told = {"issued": welcome.cmd, "now": lowered}
            logger.warning("command number lowered %s", fields(**told))
        logger.info("welcomed %s", fields(life=welcome.life, run=welcome.run, hold=welcome.hold))
        self._post.announce(self._status("online"))

    def _refused(self, refusal: m.RefusalMessage) -> None:
        fetch = self._fetch
        if fetch is not None and refusal.id == fetch.receiving.id:
            self.counts["fetches refused"] += 1
            if refusal.code == Reason.NOT_FOUND:
                self._end_fetch()
            else:
                fetch.asks = self.now + max(refusal.wait / 1000, self.up.pace.base)
            return
        self.follow(uplink.hear(self.up, refusal, self.chance()))

    def _obey(self, command: m.CommandMessage, ref: bytes) -> None:
        """Do an operator's command once; a repeat is only receipted again.

        One that is numbered below what was done, and is none of that, is not done: it may be a
        replay. It is refused, so that the aggregator can number it again, and never receipted.

        Raises:
            Refused: FROM_FUTURE: its number leaps to where no aggregator gets.
        """
        log, number = self._command_log, command.num
        code = log.code(number, ref)
        if code is None and log.is_older(number):
            self.counts["commands superseded"] += 1
            told = {"op": command.op, "num": number, "done": log.highest}
            logger.warning("command not done %s", fields(**told))
            self._post.say(m.RefusalMessage(code=Reason.SUPERSEDED, wait=0, ref=ref))
            return
        if code is None:
            log.check_leap(number, self.up.welcome.cmd if self.up.welcome is not None else 0)
            code = int(self._do(command))
            log.note(number, ref, code, stopped=int(self._held_up))
        self._post.say(m.ReceiptMessage(life=0, seq=number, ref=ref, code=code, run=0, round=0))

    def _do(self, command: m.CommandMessage) -> Reason:
        logger.info("command %s", fields(op=command.op))
        match command.op:
            case "stop" | "resume":
                self._held_up = command.op == "stop"
                self.task = None
                if not self._held_up:
                    self.reconsider()
            case "report":
                self._report()
            case "budget" if 0 <= command.args.get("releases", -1.0) <= m.RELEASES_LIMIT:
                self._allow(int(command.args["releases"]))
            case "hello":
                self.follow(uplink.greet(self.up, self.chance()))
            case _:
                return Reason.BAD_COMMAND
        return Reason.ACCEPTED

    def _allow(self, releases: int) -> None:
        """Let so many releases leave in all, and no more than the device's own budget does."""
        self.most = releases
        self._store.set_facts(**{"releases allowed": releases})

    # --- saying -----------------------------------------------------------------------------------

    def _say(self, say: uplink.Say) -> None:
        match say:
            case SendWhole(entry=entry):
                self.counts["sent"] += 1
                self._post.send(entry.kind, entry.body, entry.proof)
            case SendChunk(chunk=chunk, worker=worker):
                self._post.say(chunk, worker=worker)
            case m.OfferMessage():
                entry_ = self.up.entry((say.life, say.seq))
                again = entry_ is not None and entry_.attempts > 1
                self.counts["resent" if again else "sent"] += 1
                self._post.say(say)
            case m.HelloMessage():
                self._post.say(say)

    def _note(self, note: uplink.Note) -> None:
        match note:
            case EntrySettled(code=0):
                self.counts["accepted"] += 1
            case EntrySettled(entry=entry, code=code):
                self.counts["refused"] += 1
                self.counts[f"refused {_named(code)}"] += 1
                if code == Reason.BUDGET_SPENT:
                    self._allow(self.up.numbers.spent)
                logger.warning("update refused %s", fields(round=entry.round, reason=_named(code)))
            case RefusalReceived(code=code, wait=wait):
                self.counts[f"told {_named(code)}"] += 1
                if code in _ENDS and self.counts[f"told {_named(code)}"] == 1:
                    told = {"reason": _named(code), "do": _ENDS[Reason(code)]}
                    logger.error("learns for the fleet no more %s", fields(**told))
                logger.debug("refusal %s", fields(reason=_named(code), wait=wait))

    def _ration(self) -> None:
        """Book what crossed the link since the last look, and tell once when the day's is used."""
        crossed = self._post.bytes_up + self._post.bytes_down
        was_rationed = self.is_rationed
        self._allowance = self._allowance.use(crossed - self._booked, self._time.now(self.now))
        self._booked = crossed
        if self.is_rationed and not was_rationed:
            logger.warning("quota used %s", fields(bytes=self._allowance.used))
            self._save_allowance()

    def _save_allowance(self) -> None:
        self._store.set_facts(day=self._allowance.day, used=self._allowance.used)

    def _each_hour(self) -> None:
        if self.now - self._hour >= _HOURLY:
            self._hour = self.now
            self._keep_time()
            self._save_allowance()
            self._report()

    def _report(self) -> None:
        self._post.say(
            m.MetricsMessage(
                up=int(self.now - self._started),
                sent=self.counts["sent"],
                resent=self.counts["resent"],
                refused=self.counts["refused"],
                bytes_up=self._post.bytes_up,
                bytes_down=self._post.bytes_down,
                outbox=len(self.up.entries),
                flash=self._store.size() // 1024,
                rss=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
                **self.exchanged,
            ),
            qos=0,
        )


def _named(code: int) -> str:
    return Reason(code).name if code in Reason.__members__.values() else str(code)
