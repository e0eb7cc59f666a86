"""Run one device's protocol session: verify arrivals, save state, send what is due.

``Session`` drives the two pure modules (``wire.protocol.outbox``, ``session.announcements``) over a
link and the store. Tasks and bundles wait in ``task`` and ``bundle`` until the client takes them.
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
from edge_sdk.limits.resource_limits import lesser, limits_of
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
"""Make a link from the function that returns the last will."""

SPENT = "budget"
"""Stop reason: the privacy budget is exhausted."""

_HOURLY = 3600.0
_LOST = 30.0  # seconds without a required announcement before it is requested again; doubles
_LOST_MOST = 900.0

_ENDS = {
    Reason.TWO_LIVES: "another process uses this name and key: stop it, and enrol this one again",
    Reason.UPGRADE_REQUIRED: "install a newer version",
    Reason.REVOKED: "ask the operator; enrol this device again",
}
"""Remedy for each refusal after which this process takes no further part."""


class Session(TaskInbox):
    """The session between the link and the training code. Single-threaded, driven by ``serve``.

    Attributes:
        up: Outbox state; its numbers and entries are always saved.
        forbidden: Reason why the client sends no updates; empty if none.
        lost: True if the loss of an earlier store has just been detected.
        most: Total releases that the operator allows; None applies the configured budget.
        mail: Messages from peers, in order of arrival.
        neighbours: Raw public keys of the peers, by id.
        exchanged: Counters of the peer exchanges, for the hourly report.
        linked_at: Time at which the link last came up.
        set_aside: Messages that are skipped after a defect.
    """

    def __init__(
        self, config: Config, store: DeviceStore, clock: Clock, signer: Signer, ring: KeyRing
    ) -> None:
        """Read the saved state; ``connect`` makes the link."""
        post = SignedLink(signer, fleet=config.fleet, device=config.id)
        super().__init__(config, store, clock, post)
        self.set_aside = SetAside(store, self.counts)
        self._ring = replace(ring, announced=filed(store, m.KeysMessage, "keys"))
        base = seconds(config.timeouts.reply)
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
        self._own_quota = limits_of(config.limits).daily_link_bytes
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
        """Reason why the device does not train for the fleet now; empty if none."""
        if self._held_up:
            return "command"
        return self._phase if self._phase != "train" else self.why_silent

    @property
    def why_silent(self) -> str:
        """Reason why nothing derived from readings may be sent, in any phase; empty if none."""
        if self._held_up:
            return "command"
        if self.forbidden:
            return self.forbidden
        if self.is_rationed:
            return "quota"
        return self.up.stopped.name if self.up.stopped is not None else ""

    @property
    def is_rationed(self) -> bool:
        """Return whether the daily quota is used up; receipts, commands and status continue."""
        welcome = self.up.welcome
        told = None if welcome is None else welcome.quota
        return self._allowance.is_spent(lesser(told, self._own_quota))

    @property
    def time_for_days(self) -> int:
        """Server time in Unix milliseconds; if unknown, the latest known one plus the uptime."""
        now = self._time.now(self.now)
        return self._time.floor + int(1e3 * (self.now - self._started)) if now is None else now

    @property
    def may_learn(self) -> bool:
        """Return whether the current task may be answered now."""
        return (
            self.task is not None
            and not self.why_stopped
            and not (self.is_over and self.is_common)
            and self.up.may_release
        )

    @property
    def may_ask(self) -> bool:
        """Return whether a request may be sent to the aggregator now."""
        return self.is_linked and self.up.is_ready and not self.is_rationed

    def agreed_on(self, enc: str) -> bool:
        """Return whether an update may use this encoding: float32, or one the welcome allowed."""
        welcome = self.up.welcome
        return enc == "f4" or (welcome is not None and enc in welcome.caps)

    @property
    def is_done(self) -> bool:
        """Return whether the present run has ended, its model is in use and the outbox is empty.

        A retained manifest may belong to an earlier run; the welcome, bound to this process's own
        hello, names the present run.
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

    # --- main loop --------------------------------------------------------------------------------

    def serve(self, timeout: float) -> None:
        """Process every arrival, then send every message that is due."""
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
        """Save the changed outbox state, then send its messages, then update the counters."""
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
        """Send a perishable signal, in pieces of whole rows; what cannot be sent is dropped.

        Raises:
            Refused: BAD_TENSOR: a scalar is not finite; nothing is sent.
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
        """Send a message to a peer; one that cannot be sent now is requested again."""
        self.counts[f"bytes to neighbours {message.kind}"] += self._post.tell(neighbour, message)

    def meet(self, neighbours: Mapping[str, bytes]) -> None:
        """Accept messages from these peers only."""
        self.neighbours = neighbours
        heard, self._post.hears_peers = self._post.hears_peers, bool(neighbours)
        if neighbours and not heard and self._is_open:
            self._post.subscribe()

    def drop(self, what: str) -> None:
        """Discard what triggered a defect: a bundle, the open round's tasks, or peer messages."""
        if what == "bundle":
            self.bundle = None
        elif what == "neighbours":
            self.mail.clear()
        else:
            self.at_work = None
            self.calls.forget()

    def chance(self) -> StepInputs:
        """Return the inputs of an outbox step: the time, a random draw and a nonce."""
        return StepInputs(self._rng.random, lambda: secrets.token_bytes(16), self.now)

    def close(self) -> None:
        """Publish the offline status and close the link."""
        if self.is_linked:
            self._post.announce(self._status("offline"))
            self._post.drain()
            self._post.link.poll(0.0)
        self._post.link.close()
        self._ration()
        self._save_allowance()

    def judged_at(self) -> float | None:
        """Return the time to check certificates against, or None while the clock may be right.

        The clock is wrong if it is a day behind the newest signed time; then that time is used.
        """
        signed = max(self._time.floor, self._time.now(self.now) or 0)
        return signed / 1000 if self._clock.wall() + DAY < signed else None

    def judged_else(self) -> float | None:
        """Return a second time to check certificates against: before the stored one leapt."""
        return self._time.before / 1000 if self._time.before else None

    def last_words(self) -> Will:
        """Return the last will and count the connection; called before every CONNECT."""
        self._count_connection()
        self._conn_said = True
        return self._post.will(self._status("lost"))

    def traffic(self) -> dict[str, int]:
        """Return payload bytes and refused arrivals since the start."""
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
        """Log the loss of the link once; further attempts are logged at debug level."""
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
        """Return the wait until the next due action, at most ``timeout`` seconds."""
        if self.is_rationed:
            return timeout
        dues = [uplink.next_due(self.up), self._fetch.next_due if self._fetch else None]
        dues.append(self.calls.next_due)
        soonest = min((due for due in dues if due is not None), default=self.now + timeout)
        return max(0.0, min(timeout, soonest - self.now))

    # --- arrivals ---------------------------------------------------------------------------------

    def _take_in(self, letter: VerifiedMessage) -> None:
        if letter.sender in self.neighbours:
            self.heard_at = self.now
            self.mail.append(letter)
            return
        kind, body = letter.message.kind, digest_of(letter.message.kind, letter.ref)
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
        """Dispatch one verified message.

        Raises:
            Refused: It is verified and well formed, but must not be followed.
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
        """Adopt the keys, and request again what could not be verified without them.

        A broker sends retained messages in any order, and each of them once per subscription.
        """
        before, self._ring = self._ring, self._ring.accept(keys)
        known = before.announced
        anew = known is not None and not set(known.sign) & set(keys.sign)
        self._store.file_paper("keys", body, **({"serial": 0} if anew else {}))
        if anew:  # the holder of another key restarts the numbering
            self.seen, self._manifest = replace(self.seen, serial=0), None
        if self._ring != before and self._post.refused[Reason.UNKNOWN_CLIENT]:
            self._post.subscribe()

    def _ask_for_what_was_lost(self) -> None:
        """Request retained messages again while one that must exist is missing."""
        if not self.is_linked or not self._is_in_the_dark:
            self._lost_at, self._lost_wait = self.now + _LOST, _LOST
        elif self.now >= self._lost_at:
            self._lost_wait = min(2 * self._lost_wait, _LOST_MOST)
            self._lost_at = self.now + self._lost_wait
            self.counts["subscribed again"] += 1
            self._post.subscribe()

    @property
    def _is_in_the_dark(self) -> bool:
        """Return whether keys, a bundle announcement or a manifest is missing that must exist."""
        welcome, manifest = self.up.welcome, self._manifest
        if welcome is None:
            return self._ring.announced is None and self._post.refused[Reason.UNKNOWN_CLIENT] > 0
        run = max(welcome.run, manifest.run if manifest is not None else 0)
        announced = self.announced.run if self.announced is not None else 0
        return min(announced, manifest.run if manifest is not None else 0) < run

    def _look_for_a_loss(self, said: object) -> None:
        """After a store was lost, never add new noise to values released under other noise."""
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
        """Refuse a reply to the hello whose counters are implausibly far ahead.

        Raises:
            Refused: MALFORMED; nothing changes, and the hello is sent again.
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
            logger.error(
                "number rejected %s", fields(**what, do="enrol this device with a new key")
            )
        self.counts["leaps refused"] += 1
        raise Refused(Reason.MALFORMED, f"{name} {told} is more than {most} above {known}")

    def _hear_time(self, t: int) -> None:
        """Adopt an announced time; if it is a day behind the present estimate, request the time."""
        known = self._time.now(self.now)
        self._time = self._time.hear(t, self.now, wall=self._clock.wall())
        is_behind = known is not None and t < known - DAY
        if is_behind and self.up.is_ready and self.now >= self._doubts_at:
            self._doubts_at = self.now + _HOURLY
            logger.warning("server time implausible %s", fields(announced=t, known=known))
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
            logger.error(
                "server time rejected %s", fields(time=welcome.time, why="no key is valid")
            )
        if abs(self._time.floor - before) > DAY:
            told = {"before": before, "now": self._time.floor, "machine": self._clock.wall()}
            logger.warning("stored time changed %s", fields(**told))
        lowered = self._command_log.lower(welcome.cmd)
        if lowered is not None:
            told = {"issued": welcome.cmd, "now": lowered}
            logger.warning("command number lowered %s", fields(**told))
        logger.info(
            "welcome received %s", fields(life=welcome.life, run=welcome.run, hold=welcome.hold)
        )
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
        """Execute an operator's command once; a repeat is only receipted again.

        An unknown command numbered below the highest executed one may be a replay: it is not
        executed. It is refused, so that the aggregator can number it again, and never receipted.

        Raises:
            Refused: FROM_FUTURE: its number is implausibly far ahead.
        """
        log, number = self._command_log, command.num
        code = log.code(number, ref)
        if code is None and log.is_older(number):
            self.counts["commands superseded"] += 1
            told = {"op": command.op, "num": number, "done": log.highest}
            logger.warning("command refused %s", fields(**told))
            self._post.say(m.RefusalMessage(code=Reason.SUPERSEDED, wait=0, ref=ref))
            return
        if code is None:
            log.check_leap(number, self.up.welcome.cmd if self.up.welcome is not None else 0)
            code = int(self._do(command))
            log.note(number, ref, code, stopped=int(self._held_up))
        self._post.say(m.ReceiptMessage(life=0, seq=number, ref=ref, code=code, run=0, round=0))

    def _do(self, command: m.CommandMessage) -> Reason:
        logger.info("command executed %s", fields(op=command.op))
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
        """Set the total of allowed releases; the device's own budget still applies."""
        self.most = releases
        self._store.set_facts(**{"releases allowed": releases})

    # --- sending ----------------------------------------------------------------------------------

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
                    logger.error("participation stopped %s", fields(**told))
                logger.debug("refusal received %s", fields(reason=_named(code), wait=wait))

    def _ration(self) -> None:
        """Record the bytes that crossed the link, and log once when the daily quota is used up."""
        crossed = self._post.bytes_up + self._post.bytes_down
        was_rationed = self.is_rationed
        self._allowance = self._allowance.use(crossed - self._booked, self._time.now(self.now))
        self._booked = crossed
        if self.is_rationed and not was_rationed:
            logger.warning("daily quota exhausted %s", fields(bytes=self._allowance.used))
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
