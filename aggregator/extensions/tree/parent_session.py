"""Hold a site's session with its parent: one device's session, store and outbox, without training.

``ParentSession`` returns the newest model of the parent as a task, and sends sealed updates. It
follows a run of the parent only if its bundle and shared layers are the site's own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.config import AggregatorConfig, BoundRun
from aggregator.extensions.tree.parent_binding import ParentSection
from aggregator.extensions.tree.session_config import broker_options, load_keys, session_config
from edge_sdk.app.cli import fields
from edge_sdk.app.clock import Clock
from edge_sdk.errors import Reason, Refused, StoreFull
from edge_sdk.link.event_loop import Poller
from edge_sdk.link.transport import Transport
from edge_sdk.protocol import messages as m
from edge_sdk.protocol.codec import pack_tensor
from edge_sdk.protocol.contract.method import CONTRACTS, END, Task, Up, answered
from edge_sdk.protocol.messages import BundleMessage, UpdateMessage
from edge_sdk.protocol.outbox_state import OutboxEntry, UplinkCounters
from edge_sdk.session.agenda import Agenda, FoundBundle
from edge_sdk.session.manifest_checks import ManifestExpectation
from edge_sdk.session.parts import SessionParts
from edge_sdk.session.session import Session
from edge_sdk.store.rows import LearnedState
from edge_sdk.store.store import DeviceStore

logger = logging.getLogger(__name__)

MAX_STEPS = 65536


class ParentSession:
    """The session of one site with its parent. Single-threaded, driven by ``serve``.

    Args:
        run: The site's run, whose bundle and layers the parent's must have.
        poller: Poller of the process's links; None makes one of its own.

    Raises:
        Failure: A key, the store or the link's settings cannot be used.
    """

    def __init__(
        self,
        config: AggregatorConfig,
        parent: ParentSection,
        run: BoundRun,
        *,
        clock: Clock,
        poller: Poller | None,
    ) -> None:
        self.parent, self._run = parent, run
        self._config = session_config(config, parent)
        self._signer, ring = load_keys(config, parent)
        self._store = DeviceStore.open(self._config.state)
        self._agenda = Agenda()
        self._fault = ""
        self._offered: Turn | None = None
        self._offered_w: NDArray[np.float64] | None = None
        try:
            parts = SessionParts(
                self._config,
                self._store,
                clock=clock,
                signer=self._signer,
                ring=ring,
                agenda=self._agenda,
            )
            self._session = Session(parts)
            self._expect(self._session.announced)
            self._recall()
            self._session.connect(lambda will: _link(config, parent, will, self._session, poller))
        except BaseException:
            self._store.close()
            raise

    # --- state

    @property
    def task(self) -> Task | None:
        """Return the parent's newest model that waits to be adopted, or None."""
        return self._agenda.waiting

    @property
    def is_linked(self) -> bool:
        return self._session.is_linked

    @property
    def fault(self) -> str:
        """Return why the site does not follow the parent's run; empty if it does."""
        return self._fault

    @property
    def refused(self) -> int:
        """Return the number of updates that the parent refused since the start."""
        return self._session.counts["refused"]

    @property
    def accepted(self) -> int:
        """Return the number of updates that the parent receipted since the start."""
        return self._session.counts["accepted"]

    @property
    def pending(self) -> int:
        """Return the number of updates without a receipt."""
        return len(self._session.outbox.entries)

    @property
    def may_offer(self) -> bool:
        """Return whether an update may leave now: welcomed by the parent, and not stopped."""
        session = self._session
        if not session.outbox.may_release or session.participation.why_silent:
            return False
        try:
            session.encryption(UpdateMessage.kind)
        except Refused:  # updates must be encrypted, and no key has been announced yet
            return False
        return True

    @property
    def why_silent(self) -> str:
        """Return the reason that forbids to send to the parent: a command, a quota, a refusal; else empty."""
        return self._session.participation.why_silent

    @property
    def run(self) -> int:
        return self._session.seen.run

    def turn_of(self, task: Task) -> Turn:
        return self.run, task.round, task.attempt, task.step

    def is_offered(self, received: ParentRecord) -> bool:
        """Return whether the rounds after a model of the parent were offered."""
        return self._offered == received.turn

    def progress_since_offer(
        self, received: ParentRecord, w: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the change of the site's model since its last offer; no elements without one."""
        offered = self._offered_w
        is_kept = self.is_offered(received) and offered is not None and offered.shape == w.shape
        change = w - offered if is_kept and offered is not None else np.zeros(0)
        return change if change.any() else np.zeros(0)

    # --- changes

    def serve(self) -> None:
        """Process every arrival, and send pending messages."""
        session, agenda = self._session, self._agenda
        try:
            for event in session.serve(0.0):
                agenda.add(event)
            agenda.pop_store_loss()  # no noise was drawn here
            if agenda.bundle is not None:
                self._follow(agenda.bundle)
        except StoreFull as error:  # nothing was changed, sent or acknowledged
            if not session.counts["disk full"]:
                logger.warning("parent disk full %s", fields(why=error))
            session.count("disk full")

    def begin(self, received: ParentRecord | None) -> None:
        """Continue from the model that the site's state records; a repetition of it is ignored."""
        if received is not None and received.turn[0] == self._session.seen.run:
            if self.is_offered(received):
                self._session.parts.inbox.record_trained(received.turn[1:], received.version)
            else:
                self._start(received)

    def adopted(self, received: ParentRecord) -> None:
        """Remove the waiting task, which the site's state records now."""
        self._agenda.pop_waiting()
        self._start(received)

    def refuse_task(self) -> None:
        """Remove the waiting task without adopting its model."""
        task = self._agenda.pop_waiting()
        if task is not None:
            about = {"run": self.run, "round": task.round, "version": task.base}
            logger.error("parent model refused %s", fields(**about, why="not finite"))

    def offer(self, received: ParentRecord, w: NDArray[np.float64]) -> int:
        """Seal the site's update, save it with its number in one transaction, then send it.

        Returns:
            The count of devices that the parent receives.

        Raises:
            StoreFull: No space; nothing changed.
        """
        session, announced = self._session, self._session.announced
        assert announced is not None
        _, ask = answered(CONTRACTS[announced.method])
        message = site_update(
            received,
            w,
            session.outbox.numbers,
            up=ask.up,
            spec=self._run.spec.digest,
            max_count=self.parent.max_count,
        )
        entry = OutboxEntry.sealed(
            message,
            fleet=self._config.fleet,
            sender=self._config.id,
            signer=self._signer,
            encrypt=session.encryption(message.kind),
        )
        stored = session.parts.outbox.as_stored(entry)
        self._save(received, w, stored)
        session.parts.inbox.record_trained(received.turn[1:], received.version)
        session.release(entry, stored)
        self._agenda.finish()
        return message.n

    def close(self) -> None:
        self._session.close()
        self._store.close()

    def status(self) -> dict[str, Any]:
        """Return the session's part of the status document."""
        session = self._session
        counts = session.counts
        refused = {
            name.removeprefix("refused "): number
            for name, number in counts.items()
            if name.startswith("refused ")
        }
        stopped = self.why_silent
        return {
            "fleet": self._config.fleet,
            "id": self._config.id,
            "linked": session.is_linked,
            "run": self.run,
            "pending": self.pending,
            "accepted": self.accepted,
            **({"refused": refused} if refused else {}),
            **({"stopped": stopped} if stopped else {}),
            **({"fault": self._fault} if self._fault else {}),
        }

    # --- internals

    def _start(self, received: ParentRecord) -> None:
        _, number, attempt, step = received.turn
        self._agenda.start(
            Task(self._config.id, number, self._ask, step, received.version, attempt=attempt)
        )

    @property
    def _ask(self) -> str:
        announced = self._session.announced
        return answered(CONTRACTS[announced.method])[0] if announced is not None else END

    def _save(self, received: ParentRecord, w: NDArray[np.float64], entry: Any) -> None:  # noqa: ANN401 - an ``OutboxEntry``
        run, number, attempt, step = received.turn
        session = self._session
        learned = LearnedState(
            run=run,
            round=number,
            version=received.version,
            spec=self._run.spec.digest,
            leaves={"offered": w, "turn": [attempt, step]},
        )
        numbers = session.outbox.numbers
        after = type(numbers)(numbers.life, entry.seq, entry.spent, numbers.lost)
        self._store.save(learned=learned, numbers=after, entry=entry)
        self._offered, self._offered_w = received.turn, w

    def _recall(self) -> None:
        learned = self._store.learned()
        if learned is not None and learned.spec == self._run.spec.digest:
            attempt, step = learned.leaves["turn"]
            self._offered = (learned.run, learned.round, attempt, step)
            self._offered_w = learned.leaves["offered"]

    def _follow(self, found: FoundBundle) -> None:
        session, agenda, announced = self._session, self._agenda, found.announced
        agenda.drop_bundle()
        self._fault = self._fault_of(announced)
        if self._fault:
            is_layout = announced.digest == self._run.bundle.digest
            reason = Reason.WRONG_SPEC if is_layout else Reason.UPGRADE_REQUIRED
            logger.error("parent run refused %s", fields(run=announced.run, why=self._fault))
            for event in session.refuse_bundle(found, reason):
                agenda.add(event)
            return
        if announced.run != session.seen.run:
            agenda.begin_run()
            agenda.finish()
        self._expect(announced)
        session.adopt(found)
        details = {"run": announced.run, "bundle": announced.name, "method": announced.method}
        logger.info("parent run joined %s", fields(**details))
        for event in session.arrivals.reconsider():
            agenda.add(event)

    def _fault_of(self, announced: BundleMessage) -> str:
        """Return why the parent's run does not fit the site's; empty if it does."""
        manifest, digest = self._run.bundle.manifest, self._run.bundle.digest
        if announced.digest != digest:
            return (
                f"the parent's run has bundle {announced.name} {announced.version} "
                f"({announced.digest.hex()[:12]}), this site's has {manifest.name} "
                f"{manifest.version} ({digest.hex()[:12]}); set run.bundle to the parent's"
            )
        if announced.spec != self._run.spec.digest:
            return (
                f"the parent's run shares layers {', '.join(announced.shared) or 'none'}, this "
                f"site's {', '.join(self._run.shared) or 'none'}; set run.shared to the parent's"
            )
        return ""

    def _expect(self, announced: BundleMessage | None) -> None:
        """Set the properties that manifests and tasks of the parent must have."""
        bundle, spec = self._run.bundle, self._run.spec
        if announced is not None and not self._fault:
            self._fault = self._fault_of(announced)
        method = announced.method if announced is not None else self._config.accept.methods[0]
        signed = bundle.manifest.training.limits
        wanted = ManifestExpectation(
            spec.digest, spec.shared_size, CONTRACTS[method], MAX_STEPS, signed
        )
        self._session.expect(wanted, installed=bundle.digest)


def _link(
    config: AggregatorConfig,
    parent: ParentSection,
    will: Callable[[], Any],
    session: Session,
    poller: Poller | None,
) -> Transport:
    from edge_sdk.link.mqtt import MqttLink  # noqa: PLC0415 - loads paho: only for a real broker

    options = broker_options(
        config,
        parent,
        will=will,
        judged_at=session.time.certificate_time,
        judged_else=session.time.earlier_certificate_time,
    )
    return MqttLink(options, poller=poller)


Turn = tuple[int, int, int, int]  # run, round, attempt and step of a task of the parent


@dataclass(frozen=True, slots=True)
class ParentRecord:
    """The model received last from the parent, as a site's state records it."""

    turn: Turn  # run, round, attempt and step of the parent's task
    version: int  # the parent's version of the model
    w: NDArray[np.float32]  # the model, shape ``(P,)``, float32
    rounds: int  # rounds of the site that have moved its model since
    count: int  # largest number of updates in one of them

    @classmethod
    def of(cls, state: Any) -> ParentRecord | None:  # noqa: ANN401 - the half's own
        """Return the record in a state, or None before the first model of the parent."""
        kept: Mapping[str, Any] = getattr(state, "parent", {})
        if not kept:
            return None
        turn = (kept["run"], kept["number"], kept["attempt"], kept["step"])
        return cls(turn, kept["version"], kept["w"], kept["rounds"], kept["count"])


def site_update(
    received: ParentRecord,
    w: NDArray[np.float64],
    numbers: UplinkCounters,
    *,
    up: Up,
    spec: bytes,
    max_count: int,
) -> m.UpdateMessage:
    """Return the update of a site: received minus present model, or the present model.

    It names no device; its count is that of the site's largest round, at most ``max_count``. Losses
    of devices are not passed on.

    Args:
        numbers: Last sequence number used, and the releases so far.
        up: Answer that the parent's method expects.
    """
    run, number, _, _ = received.turn
    vector = w if up is Up.WEIGHTS else received.w.astype(np.float64) - w
    return m.UpdateMessage(
        run=run,
        round=number,
        base=received.version,
        life=numbers.life,
        seq=numbers.seq + 1,
        spent=numbers.spent + 1,
        spec=spec,
        part=up.value,
        enc="f4",
        n=min(received.count, max_count),
        vals={},
        blob=pack_tensor(vector.astype(np.float32), "f4"),
    )
