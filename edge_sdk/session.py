"""One device's conversation with its fleet: proves what arrives, keeps what must be kept, answers.

``Session`` drives the two pure sides (``uplink``, ``downlink``) over a link and the store. What it
finds out for the learner lies in ``task`` and ``bundle`` until the client takes it.
"""

from __future__ import annotations

import logging
import random
import resource
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from edge_sdk import downlink, uplink
from edge_sdk.allowance import Allowance
from edge_sdk.bundle import SDK_VERSION
from edge_sdk.clock import Clock, ServerTime
from edge_sdk.config import Config
from edge_sdk.downlink import Fetch, KeyRing, Seen, Wanted
from edge_sdk.post import Letter, Post, Will
from edge_sdk.program import fields
from edge_sdk.settings import seconds
from edge_sdk.store import Store
from edge_sdk.uplink import Chance, Entry, Heard, Pace, Piece, Settled, Turn, Uplink, Whole
from edge_sdk.wire import messages as m
from edge_sdk.wire.codec import decode, unpack_tensor
from edge_sdk.wire.cohort import takes_part
from edge_sdk.wire.envelope import digest
from edge_sdk.wire.errors import Reason, Refused
from edge_sdk.wire.keys import Signer
from edge_sdk.wire.method import END, Task
from edge_sdk.wire.spec import Vector
from edge_sdk.wire.transport import LinkDown, LinkUp, Transport

logger = logging.getLogger(__name__)

M = TypeVar("M", m.Bundle, m.Keys)

Connect = Callable[[Callable[[], Will]], Transport]
"""Makes a link from a function that says our last words."""

SPENT = "budget"
"""Why a device answers nothing any more: what it may tell about itself is told."""

_GRACE = 600.0  # seconds after which a round counts as over when no server time is known
_HOURLY = 3600.0


@dataclass(frozen=True, slots=True)
class Found:
    """A bundle announcement that concerns us, its bytes, and the archive if we lacked it."""

    announced: m.Bundle
    body: bytes
    archive: bytes | None


class Session:
    """Everything between the link and the learner. Single-threaded, driven by ``serve``.

    Attributes:
        up: The uplink's state; its numbers and entries are always saved.
        seen: The newest of what was announced and used.
        wanted: What a manifest must fit; set by the client with every bundle.
        holds: Digest of the installed bundle's archive.
        announced: The bundle announcement in force, or None before the first.
        task: The newest task that is ready to be learned.
        at_work: The task that is being learned now: a repeat of it is no news.
        bundle: A bundle announcement that waits to be taken over.
        forbidden: Why the client lets nothing leave; empty if it does.
        lost: Whether it just came out that a store before this one was lost.
        most: Releases that the operator allows in all; None is as many as the configuration does.
        counts: What happened, by word.
    """

    def __init__(
        self, config: Config, store: Store, clock: Clock, signer: Signer, ring: KeyRing
    ) -> None:
        """Read what must not be forgotten; ``connect`` makes the link."""
        self._config, self._store, self._clock = config, store, clock
        self._post = Post(signer, fleet=config.fleet, device=config.id)
        self.counts: Counter[str] = Counter()
        self.announced = _read(store, m.Bundle, "bundle")
        self._ring = replace(ring, announced=_read(store, m.Keys, "keys"))
        self.seen = Seen(store.fact("serial"), self.announced.run if self.announced else 0)
        base = seconds(config.pace.answer)
        self.up = Uplink(
            numbers=store.numbers(),
            entries=store.outbox(),
            conn=store.fact("conn"),
            sdk=".".join(map(str, SDK_VERSION)),
            pace=Pace(base, 90 * base),
        )
        self._kept = self.up.entries
        self._rng = random.Random(secrets.randbits(64))  # noqa: S311 - spreads a fleet, hides nothing
        self._time = ServerTime(max(ServerTime().floor, store.fact("floor")))
        self._started = self._hour = self.heard_at = self.now
        self._held_up = bool(store.fact("stopped"))
        self._allowance, self._booked = Allowance(store.fact("day"), store.fact("used")), 0
        self._phase = "train"
        self._conn_said = self._said_down = False
        self._manifest: m.Model | None = None
        self._manifest_at = self.now
        self._fetch: Fetch | None = None
        self._asked: m.Task | None = None
        self._content: tuple[bytes, Vector] | None = None
        self._coming: tuple[m.Bundle, bytes] | None = None
        self.wanted: Wanted | None = None
        self.holds = b""
        self.task: Task | None = None
        self.at_work: Task | None = None
        self.bundle: Found | None = None
        self.forbidden, self.lost = "", False
        allowed = store.fact("releases allowed", -1)
        self.most = allowed if allowed >= 0 else None

    def connect(self, make: Connect) -> None:
        """Make the link and start connecting."""
        self._post.link = make(self.last_words)
        self._post.link.open()

    @property
    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return self._clock.monotonic()

    @property
    def is_linked(self) -> bool:
        """Whether the broker has accepted us."""
        return self._post.link.is_up

    @property
    def why_stopped(self) -> str:
        """Why nothing is learned for the fleet now; empty if nothing forbids it."""
        if self._held_up:
            return "command"
        if self._phase != "train":
            return self._phase
        if self.forbidden:
            return self.forbidden
        if self.is_rationed:
            return "quota"
        return self.up.stopped.name if self.up.stopped is not None else ""

    @property
    def is_rationed(self) -> bool:
        """Whether the bytes of this day are used up; receipts, commands and status go on."""
        welcome = self.up.welcome
        return self._allowance.is_spent(None if welcome is None else welcome.quota)

    @property
    def may_learn(self) -> bool:
        """Whether the task at hand may be answered now."""
        return (
            self.task is not None
            and not self.why_stopped
            and not (self.is_over and self.is_common)
            and self.up.may_release
        )

    def agreed_on(self, enc: str) -> bool:
        """Whether an answer may have this encoding: the least one, or one we were allowed."""
        welcome = self.up.welcome
        return enc == "f4" or (welcome is not None and enc in welcome.caps)

    @property
    def is_common(self) -> bool:
        """Whether manifests ask: everybody at once, until a time; otherwise tasks do."""
        return self.wanted is None or not self.wanted.ask.personal

    @property
    def is_ending(self) -> bool:
        """Whether the run has ended, so that a task is only to take the final model over."""
        return self._phase == "stop"

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

    def learned(self, turn: tuple[int, int, int], version: int) -> None:
        """Remember which task was learned last; the store has it already."""
        round_, attempt, step = turn
        self.seen = replace(self.seen, round=round_, attempt=attempt, step=step, version=version)

    @property
    def is_over(self) -> bool:
        """Whether the round of the newest manifest is known to have ended."""
        manifest = self._manifest
        if manifest is None:
            return False
        grace = manifest.spread / 1000 + _GRACE
        return self._time.has_passed(manifest.until, self.now, since=self._manifest_at, grace=grace)

    # --- driving ----------------------------------------------------------------------------------

    def serve(self, timeout: float) -> None:
        """Take in everything that arrived, then say everything that is due."""
        for happening in self._post.poll(self._until_due(timeout), self._key_of):
            match happening:
                case LinkUp(max_payload=most):
                    self._link_up(most)
                case LinkDown(why=why):
                    self._link_down(why)
                case Letter():
                    self._take_in(happening)
        if not self.is_rationed:
            self.follow(uplink.tick(self.up, self.chance()))
            self._go_on_fetching()
        self._each_hour()
        self._post.drain()
        self._ration()

    def follow(self, turn: Turn) -> None:
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

    def released(self, entry: Entry) -> None:
        """Send an entry that the store already holds."""
        self._kept = (*self._kept, entry)
        self.follow(uplink.release(self.up, entry, self.chance()))

    def chance(self) -> Chance:
        """Lend the uplink the present, a draw and a nonce."""
        return Chance(self._rng.random, lambda: secrets.token_bytes(16), self.now)

    def adopt(self, found: Found) -> None:
        """Remember that this announcement is the one in force; a new run starts from nothing."""
        if found.announced.run != self.seen.run:
            self.seen = Seen(self.seen.serial, found.announced.run)
            self.task = self._fetch = self._content = None
            if self._asked is not None and self._asked.run != self.seen.run:
                self._asked = None
        self._store.file_paper("bundle", found.body)
        self.announced, self.bundle = found.announced, None

    def reconsider(self) -> None:
        """Judge the newest manifest and task again, now that what they need is here."""
        try:
            if self._manifest is not None:
                self._consider(self._manifest)
            if self._asked is not None:
                self._consider_task(self._asked)
        except Refused as refused:
            self._post.refused[refused.reason] += 1

    def close(self) -> None:
        """Say goodbye."""
        if self.is_linked:
            self._post.announce(self._status("offline"))
            self._post.drain()
            self._post.link.poll(0.0)
        self._post.link.close()
        self._ration()
        self._save_allowance()

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

    def _link_up(self, max_payload: int) -> None:
        if not self._conn_said:
            self._count_connection()
        self._conn_said = False
        logger.info("link up %s", fields(conn=self.up.conn))
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
        self.up = replace(self.up, conn=self.up.conn + 1)
        self._store.set_facts(conn=self.up.conn)

    def _status(self, state: str) -> m.Status:
        life = self.up.welcome.life if self.up.welcome is not None else 0
        return m.Status(state=state, life=life, conn=self.up.conn)  # type: ignore[arg-type]

    def _key_of(self, sender: str, kid: bytes) -> bytes | None:
        return self._ring.key(sender, kid, self._time.now(self.now))

    def _until_due(self, timeout: float) -> float:
        """Wait no longer than until something is due."""
        if self.is_rationed:
            return timeout
        dues = [uplink.next_due(self.up), self._fetch.next_due if self._fetch else None]
        soonest = min((due for due in dues if due is not None), default=self.now + timeout)
        return max(0.0, min(timeout, soonest - self.now))

    # --- what arrives -----------------------------------------------------------------------------

    def _take_in(self, letter: Letter) -> None:
        try:
            self._hear(letter)
        except Refused as refused:
            self._post.refused[refused.reason] += 1
            logger.debug("not followed %s", fields(kind=letter.message.kind, why=refused))

    def _hear(self, letter: Letter) -> None:
        """Sort one proved message to whom it concerns.

        Raises:
            Refused: It is proved and well formed, and not to be followed.
        """
        self.heard_at = self.now
        match letter.message:
            case m.Welcome() | m.Floor() | m.Grant() | m.Receipt() | m.Have() as said:
                was_ready = self.up.is_ready
                self._look_for_a_loss(said)
                self.follow(uplink.hear(self.up, said, self.chance()))
                if isinstance(said, m.Welcome) and self.up.is_ready and not was_ready:
                    self._welcomed(said)
            case m.Refusal() as refusal:
                self._refused(refusal)
            case m.Part() | m.Chunk() as piece:
                self._take(piece)
            case m.Model() | m.Task() as question:
                self._heed(question)
            case m.Bundle() as announced:
                self._consider_bundle(announced, letter.body)
            case m.Keys() as keys:
                self._follow_keys(keys, letter.body)
            case m.Time(t=t):
                self._time = self._time.hear(t, self.now)
            case m.Command() as command:
                self._obey(command, letter.ref)
            case _:
                raise Refused(Reason.UNKNOWN_KIND, letter.message.kind)

    def _follow_keys(self, keys: m.Keys, body: bytes) -> None:
        """Take the keys over, and ask again for what could not be proved before we had them.

        A broker sends retained messages in any order, and each of them once per subscription.
        """
        before, self._ring = self._ring, self._ring.accept(keys)
        self._store.file_paper("keys", body)
        if self._ring != before and self._post.refused[Reason.UNKNOWN_CLIENT]:
            self._post.subscribe()

    def _look_for_a_loss(self, said: object) -> None:
        """If a store was lost, never perturb anew what may have been told under other noise."""
        if not isinstance(said, m.Welcome) or self.up.greeting is None:
            return
        is_ours = said.hello == self.up.greeting.ref
        if is_ours and self.up.numbers.lost and said.spent > 0:
            self._store.begin_noise_anew(said.time // 1000)
            self.lost = True

    def _welcomed(self, welcome: m.Welcome) -> None:
        self._time = self._time.hear(welcome.time, self.now, bound=True)
        self._store.set_facts(floor=self._time.floor)
        logger.info("welcomed %s", fields(life=welcome.life, run=welcome.run, hold=welcome.hold))
        self._post.announce(self._status("online"))

    def _refused(self, refusal: m.Refusal) -> None:
        fetch = self._fetch
        if fetch is not None and refusal.id == fetch.receiving.id:
            self.counts["fetches refused"] += 1
            if refusal.code == Reason.NOT_FOUND:
                self._end_fetch()
            else:
                fetch.asks = self.now + max(refusal.wait / 1000, self.up.pace.base)
            return
        self.follow(uplink.hear(self.up, refusal, self.chance()))

    def _obey(self, command: m.Command, ref: bytes) -> None:
        """Do an operator's command once; a repeat is only receipted again."""
        done = self._store.fact("command")
        code = Reason.ACCEPTED
        if command.num > done:
            code = self._do(command)
            self._store.set_facts(command=command.num, stopped=int(self._held_up))
        receipt = m.Receipt(life=0, seq=command.num, ref=ref, code=code, run=0, round=0)
        self._post.say(receipt)

    def _do(self, command: m.Command) -> Reason:
        logger.info("command %s", fields(op=command.op))
        match command.op:
            case "stop" | "resume":
                self._held_up = command.op == "stop"
                self.task = None
                if not self._held_up:
                    self.reconsider()
            case "report":
                self._report()
            case "budget" if command.args.get("releases", -1.0) >= 0.0:
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

    # --- models and bundles -----------------------------------------------------------------------

    def _consider_bundle(self, announced: m.Bundle, body: bytes) -> None:
        """Follow a newer announcement; fetch its archive first if another bundle is installed."""
        newest = self.announced
        accepted = self._config.accept.methods
        downlink.judge_bundle(announced, newest, lambda name: name in accepted)
        if newest is not None and announced.serial == newest.serial:
            return
        if announced.digest == self.holds:
            self.bundle = Found(announced, body, None)
        elif self._coming is None or self._coming[0].serial < announced.serial:
            self._coming = (announced, body)
            self._begin(Fetch.of(announced, opens=self.now, patience=0.0, rng=self._rng))

    def _heed(self, question: m.Model | m.Task) -> None:
        """Hear what is asked: of everybody, or of us alone."""
        if isinstance(question, m.Model):
            self._consider(question)
        else:
            self._consider_task(question)

    def _consider(self, manifest: m.Model) -> None:
        """Decide whether the round that a manifest opens concerns this device."""
        if self._manifest is None or manifest.serial > self._manifest.serial:
            self._manifest, self._manifest_at = manifest, self.now
        if self.wanted is None or self.bundle is not None or manifest.run > self.seen.run:
            return  # considered again when the announced run is in force
        downlink.judge_model(manifest, self.seen, self.wanted)
        if manifest.serial > self.seen.serial:
            self._store.set_facts(serial=manifest.serial)
            self.seen = replace(self.seen, serial=manifest.serial)
        self._phase = manifest.phase
        self.up = replace(self.up, inline=manifest.inline)
        if self._is_wanted(manifest) and not self._is_coming(manifest):
            self._plan(manifest)

    def _is_wanted(self, manifest: m.Model) -> bool:
        """Whether to fetch: to learn a round not yet learned, or to end with the final model."""
        if manifest.phase == "stop":
            return manifest.version > self.seen.version
        if not self.is_common:
            return False
        is_new = manifest.round > self.seen.round and not self._held_up
        drawn = takes_part(manifest.cohort or b"", self._config.id, manifest.share)
        return manifest.phase == "train" and is_new and drawn and not self.is_over

    def _is_coming(self, manifest: m.Model) -> bool:
        """Whether the same round is being fetched, waits to be learned, or is learned now."""
        asks = END if manifest.phase == "stop" else self._name
        for task in (self.task, self.at_work):
            if task is not None and (task.round, task.ask) == (manifest.round, asks):
                return True
        coming = self._fetch.manifest if self._fetch else None
        return (
            isinstance(coming, m.Model)
            and coming.round == manifest.round
            and coming.digest == manifest.digest
        )

    def _consider_task(self, task: m.Task) -> None:
        """Keep the newest task; work on it once, and on no older one."""
        if task.run < self.seen.run:
            raise Refused(Reason.WRONG_RUN, f"run {task.run}, expected {self.seen.run}")
        kept = self._asked
        if kept is None or kept.run != task.run or task.turn > kept.turn:
            kept = task
        elif task.turn == kept.turn and task.blob:
            kept = task  # a reminder is without it
        self._asked = kept
        if self.wanted is None or self.bundle is not None or kept.run > self.seen.run:
            return  # considered again when the announced run is in force
        if self._held_up or self.is_ending:
            return
        downlink.judge_task(kept, self.seen, self.wanted)
        if kept.turn > self.seen.turn and not self._is_at(kept):
            self._lay(kept)

    def _is_at(self, task: m.Task) -> bool:
        """Whether this very task is being fetched, waits to be learned, or is learned now."""
        for one in (self.task, self.at_work):
            if one is not None and one.ask != END and _turn(one) == task.turn:
                return True
        coming = self._fetch.manifest if self._fetch else None
        return isinstance(coming, m.Task) and coming.turn == task.turn and not task.blob

    def _lay(self, task: m.Task) -> None:
        """Lay a task ready, or fetch what it brings first."""
        self.task = None
        if task.digest is None:
            self._give_task(task, {})
        elif task.blob:
            if digest(task.blob) != task.digest:
                raise Refused(Reason.BAD_DIGEST, "the blob of a task")
            self._take_task(task, task.blob)
        elif self._content is not None and self._content[0] == task.digest:
            self._give_task(task, self._vectors(task, self._content[1]))
        elif not isinstance(self._fetch and self._fetch.manifest, m.Bundle):
            self._begin(Fetch.of(task, opens=self.now, patience=0.0, rng=self._rng))

    def _take_task(self, task: m.Task, body: bytes) -> None:
        content = decode(m.Content, body)
        if (content.run, content.version, content.spec) != (task.run, task.base, task.spec):
            raise Refused(Reason.MALFORMED, "the content is not what its task says")
        assert self.wanted is not None
        whole = self.wanted.size * max(1, len(content.blob) // max(1, 4 * self.wanted.size))
        joined = unpack_tensor(content.blob, content.enc, whole).astype(np.float32)
        self._content = (task.digest or b"", joined)
        self._give_task(task, self._vectors(task, joined))

    def _vectors(self, task: m.Task, joined: Vector) -> dict[str, Vector]:
        assert self.wanted is not None
        return downlink.vectors(self.wanted.contract[task.ask].down, joined, self.wanted.size)

    def _give_task(self, task: m.Task, arrays: dict[str, Vector]) -> None:
        self._end_fetch_of_task()
        self.task = Task(
            to=self._config.id,
            round=task.round,
            ask=task.ask,
            step=task.step,
            base=task.base,
            attempt=task.attempt,
            values=task.vals,
            arrays=arrays,
        )

    def _end_fetch_of_task(self) -> None:
        if self._fetch is not None and isinstance(self._fetch.manifest, m.Task):
            self._end_fetch()

    def _plan(self, manifest: m.Model) -> None:
        self.task = None
        if self._content is not None and self._content[0] == manifest.digest:
            self._give(manifest, self._content[1])
            return
        if isinstance(self._fetch and self._fetch.manifest, m.Bundle):
            return  # one transfer at a time; considered again when the bundle is in force
        opens = self.now + self._rng.random() * manifest.spread / 1000
        patience = seconds(self._config.pace.fetch)
        self._begin(Fetch.of(manifest, opens=opens, patience=patience, rng=self._rng))

    def _begin(self, fetch: Fetch) -> None:
        self._end_fetch()
        self._fetch = fetch

    def _end_fetch(self) -> None:
        if self._fetch is not None and self._fetch.is_open:
            self._post.fetch_parts(wanted=False)
        if self._fetch is not None and isinstance(self._fetch.manifest, m.Bundle):
            self._coming = None
        self._fetch = None

    def _go_on_fetching(self) -> None:
        """Open the slots when it is time, and ask for what did not come."""
        fetch = self._fetch
        if fetch is None or not self.is_linked or self.now < fetch.opens:
            return
        if fetch.has_slots and not fetch.is_open:
            fetch.is_open = True
            self._post.fetch_parts(wanted=True)
        have = fetch.ask(self.now)
        if have is not None:
            self.counts["fetches asked"] += 1
            self._post.say(have)

    def _take(self, piece: m.Part | m.Chunk) -> None:
        fetch = self._fetch
        if fetch is None:
            return
        fetch.take(piece, self.now)
        if not fetch.receiving.is_complete:
            return
        body = fetch.receiving.body()
        coming = self._coming
        self._end_fetch()
        if isinstance(fetch.manifest, m.Model):
            self._give(fetch.manifest, self._read_content(fetch.manifest, body))
        elif isinstance(fetch.manifest, m.Task):
            self._take_task(fetch.manifest, body)
        elif coming is not None:
            self.bundle = Found(*coming, archive=body)

    def _read_content(self, manifest: m.Model, body: bytes) -> Vector:
        """Read the vector; the digest was checked, so what contradicts is the server's fault."""
        content = decode(m.Content, body)
        said = (content.run, content.version, content.part, content.spec, content.enc)
        if said != (manifest.run, manifest.version, manifest.part, manifest.spec, manifest.enc):
            raise Refused(Reason.MALFORMED, "the content is not what its manifest says")
        assert self.wanted is not None
        vector = unpack_tensor(content.blob, content.enc, self.wanted.size)
        return vector.astype(np.float32)

    @property
    def _name(self) -> str:
        return self.wanted.name if self.wanted is not None else ""

    def _give(self, manifest: m.Model, w: Vector) -> None:
        """Lay the task ready; at the end there is only the final model to take over."""
        assert self.wanted is not None
        self._content = (manifest.digest, w)
        is_end = manifest.phase == "stop"
        self.task = Task(
            to=self._config.id,
            round=manifest.round,
            ask=END if is_end else self.wanted.name,
            base=manifest.version,
            values={} if is_end else manifest.vals,
            arrays={"w" if is_end else self.wanted.ask.down[0]: w},
        )

    # --- saying -----------------------------------------------------------------------------------

    def _say(self, say: uplink.Say) -> None:
        match say:
            case Whole(entry=entry):
                self.counts["sent"] += 1
                self._post.send(entry.kind, entry.body, entry.proof)
            case Piece(chunk=chunk, worker=worker):
                self._post.say(chunk, worker=worker)
            case m.Offer():
                entry_ = self.up.entry((say.life, say.seq))
                again = entry_ is not None and entry_.attempts > 1
                self.counts["resent" if again else "sent"] += 1
                self._post.say(say)
            case m.Hello():
                self._post.say(say)

    def _note(self, note: uplink.Note) -> None:
        match note:
            case Settled(code=0):
                self.counts["accepted"] += 1
            case Settled(entry=entry, code=code):
                self.counts["refused"] += 1
                self.counts[f"refused {_named(code)}"] += 1
                if code == Reason.BUDGET_SPENT:
                    self._allow(self.up.numbers.spent)
                logger.warning("update refused %s", fields(round=entry.round, reason=_named(code)))
            case Heard(code=code, wait=wait):
                self.counts[f"told {_named(code)}"] += 1
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
            self._store.set_facts(floor=max(self._time.floor, self._time.now(self.now) or 0))
            self._save_allowance()
            self._report()

    def _report(self) -> None:
        self._post.say(
            m.Metrics(
                up=int(self.now - self._started),
                sent=self.counts["sent"],
                resent=self.counts["resent"],
                refused=self.counts["refused"],
                bytes_up=self._post.bytes_up,
                bytes_down=self._post.bytes_down,
                outbox=len(self.up.entries),
                flash=self._store.size() // 1024,
                rss=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            ),
            qos=0,
        )


def _turn(task: Task) -> tuple[int, int, int]:
    return task.round, task.attempt, task.step


def _named(code: int) -> str:
    return Reason(code).name if code in Reason.__members__.values() else str(code)


def _read(store: Store, what: type[M], name: str) -> M | None:
    paper = store.paper(name)
    return None if paper is None else decode(what, paper)
