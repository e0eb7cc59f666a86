"""Drive the peer exchange of one run: train, offer, wait, mix, and resume after a crash.

An offer is charged and saved before a byte of it is sent; the decision about a link is saved before
the peer receives it. A process that is killed at any point resumes at the same step, and its
gradient trackers remain consistent. If a device lost its store, all devices must restart their
trackers: the device starts the next epoch for that.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edge_sdk.app.cli import fields
from edge_sdk.errors import Refused
from edge_sdk.extensions.peers import exchange as gossip
from edge_sdk.extensions.peers.chunks import PeerChunks
from edge_sdk.extensions.peers.exchange_types import (
    ExchangeStep,
    LinkDisagreement,
    Lost,
    Note,
    Offered,
    PeerExchange,
    PeerLink,
)
from edge_sdk.extensions.peers.gossip import ADAPT, ALONE, BEGIN, MIX, exchange_parts
from edge_sdk.extensions.peers.messages import PeerMessage, SettleMessage
from edge_sdk.extensions.peers.peer_letters import PeerLetters
from edge_sdk.extensions.peers.saved_decisions import save_decision, saved_decisions
from edge_sdk.extensions.peers.topology import PeerSettings
from edge_sdk.protocol.codec import Leaf
from edge_sdk.protocol.contract.method import Array, Task
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from edge_sdk.protocol.outbox_state import RetryPolicy
from edge_sdk.session.session import Session
from edge_sdk.session.signed_link import VerifiedMessage
from edge_sdk.store.store import DeviceStore

logger = logging.getLogger(__name__)

_QUIET = 0.25  # share of the deadline without decisions after the link came back
_QUIET_MOST = 5.0  # seconds


@dataclass(frozen=True, slots=True)
class PeerShell:
    """The functions of the client that the exchange uses."""

    state: Callable[[], Any]  # returns the learned state of the half
    apply: Callable[[Any, Task], Any]  # applies a task to the half; nothing is saved
    adopt: Callable[[Any], None]  # sets the state to forecast with; nothing is saved
    # charges so many releases and saves, in one transaction; raises ``BudgetSpent`` or
    # ``StoreFull``, and then nothing has changed
    save: Callable[[Any, Mapping[str, Leaf], int], None]


@dataclass(frozen=True, slots=True)
class ExchangePosition:
    """The position of a device: step ``t`` of the run, and the turn of its exchange."""

    t: int = 0
    turn: int = 0


class PeerDriver:
    """The exchange of one run in one neighbourhood, driven by ``serve``.

    Attributes:
        settings: Peers and settings.
    """

    def __init__(
        self,
        settings: PeerSettings,
        method: str,
        *,
        me: str,
        run: int,
        spec: ParamSpec,
        session: Session,
        letters: PeerLetters,
        arrived: deque[VerifiedMessage],
        store: DeviceStore,
        shell: PeerShell,
        pace: RetryPolicy,
        kept: Mapping[str, Leaf] | None,
    ) -> None:
        """Resume from ``kept``, or begin."""
        self.settings, self._method, self._spec = settings, method, spec
        self._session, self._letters, self._store, self._shell = session, letters, store, shell
        self._arrived = arrived
        self._turns = exchange_parts(method, settings.values)
        self._place = ExchangePosition()
        self._began = self._heard_at = self._linked_at = session.now
        self._is_mixed = self._is_started = False
        empty = PeerLink(PeerChunks(spec.shared_size))
        self._x = PeerExchange(
            me,
            run,
            settings.epoch,
            spec.digest,
            spec.shared_size,
            is_strict=method == "dfl_gt" or bool(settings.values.get("insist")),
            deadline=settings.deadline,
            links=dict.fromkeys(sorted(settings.keys), empty),
            pace=pace,
            began=session.now,
        )
        self._is_new = True
        if kept is not None and int(kept["run"]) == run and int(kept["epoch"]) >= settings.epoch:
            self._resume(kept)
        letters.accept(settings.keys, settings.open)

    # --- interface of the client ------------------------------------------------------------------

    @property
    def next_due(self) -> float:
        """Time of the next action of ``serve`` if nothing arrives."""
        if not self._session.is_linked or self._is_finished:
            return self._session.now + self.settings.deadline
        if not self._is_started:
            return self._session.now
        if self._is_mixed:
            return self._session.now if self._x.is_behind else self._began + self.settings.interval
        due = gossip.next_due(self._x)
        return self._session.now if due is None else due

    @property
    def is_done(self) -> bool:
        """Return whether all steps are done, and no peer has requested anything for a while."""
        silent = self._session.now - max(self._heard_at, self._began)
        return self._is_finished and silent >= gossip.PATIENCE * self.settings.deadline

    def status(self) -> dict[str, Any]:
        """Return the state of the exchange, without any measured value."""
        counts = self._session.counts
        return {
            "epoch": self._x.epoch,
            "step": self._place.t,
            "last": self.settings.total_steps,
            "exchanges": counts["exchanges"],
            "mixed": counts["links used"],
            "missed": counts["links missed"],
            "links": {
                name: "up" if link.is_up else "down" for name, link in sorted(self._x.links.items())
            },
        }

    def serve(self) -> None:
        """Process peer messages, decide links that can be decided, and continue when due."""
        session = self._session
        if not session.is_linked:
            return
        if session.connection.linked_at > self._linked_at:
            self._linked_at = now = session.connection.linked_at
            quiet = now + min(_QUIET * self.settings.deadline, _QUIET_MOST)
            self._x = replace(self._x, began=now, quiet=quiet)
            if self._is_started:
                self._follow(gossip.repeated(self._x))
        while self._arrived:
            letter = self._arrived.popleft()
            self._heard_at = session.now
            assert isinstance(letter.message, (PeerMessage, SettleMessage))
            try:
                turn = gossip.receive(self._x, letter.sender, letter.message, session.now)
            except Refused as refused:
                session.count(f"neighbours refused {refused.reason.name}")
                continue
            self._follow(turn)
        if self._is_started:
            self._follow(gossip.tick(self._x, session.now, session.parts.outbox.inputs().draw))
        self._catch_up()
        self._go_on()

    # --- steps ------------------------------------------------------------------------------------

    @property
    def _is_finished(self) -> bool:
        return self._place.t >= self.settings.total_steps

    def _go_on(self) -> None:
        if self._is_started and not self._is_mixed and self._x.is_over:
            self._mix()
        if self._is_finished or self._session.participation.why_stopped:
            return
        if not self._is_started:
            self._join(self._x.epoch, self._place)
        if self._is_mixed and (self._place.turn or self._is_time):
            self._offer(self._shell.state())

    @property
    def _is_time(self) -> bool:
        return self._x.is_behind or self._session.now >= self._began + self.settings.interval

    def _mix(self) -> None:
        x, used = self._x, self._x.used
        degrees = {name: x.links[name].received.degree for name in used}
        weights = np.array([self.settings.weight(degrees, name) for name in used])
        state = self._apply(self._shell.state(), MIX, {"weights": weights, **gossip.vectors(x)})
        session = self._session
        session.count("exchanges")
        session.count("links used", len(used))
        session.count("links missed", len(x.links) - len(used))
        logger.info(
            "models mixed %s", fields(epoch=x.epoch, step=self._place.t, used=",".join(used))
        )
        place, last = self._place, self._place.turn + 1 == len(self._turns)
        self._place = (
            ExchangePosition(place.t + 1) if last else ExchangePosition(place.t, place.turn + 1)
        )
        while last and self._place.t % self.settings.steps and not self._is_finished:
            state = self._apply(state, ALONE)
            self._place = ExchangePosition(self._place.t + 1)
        self._is_mixed, self._is_new = True, False
        self._shell.adopt(state)
        self._letters.record_exchange(
            {
                "step": self._place.t,
                "mixed": session.counts["links used"],
                "missed": session.counts["links missed"],
            }
        )
        if self._is_finished:
            self._shell.save(state, self._leaves(self._x), 0)

    def _offer(self, state: Any) -> None:  # noqa: ANN401 - the half's own type
        before = self._place
        state = self._apply(state, ADAPT)
        parts = self._turns[self._place.turn]
        offered = {part: state.offered(self._spec, part).astype(np.float32) for part in parts}
        turn = gossip.begin(self._x, self._number, offered, self._session.now)
        self._shell.save(state, self._leaves(turn.exchange), 1)
        if not before.turn:
            self._began = self._session.now
        self._is_started, self._is_mixed = True, False
        self._follow(turn)

    @property
    def _number(self) -> int:
        return self._place.t * len(self._turns) + self._place.turn

    def _apply(self, state: Any, ask: str, arrays: Mapping[str, Array] | None = None) -> Any:  # noqa: ANN401 - as above
        place, values = self._place, {**self.settings.values, "turn": float(self._place.turn)}
        task = Task(self._x.me, self._x.epoch, ask, place.t, values=values, arrays=arrays or {})
        return self._shell.apply(state, task)

    # --- epochs and late joining ------------------------------------------------------------------

    def _follow(self, turn: ExchangeStep) -> None:
        self._x = turn.exchange
        for made in turn.decided:
            save_decision(self._store, made, self._x)
        for name, message in turn.messages:
            self._letters.send(name, message)
        for note in turn.notes:
            self._note(note)

    def _note(self, note: Note) -> None:
        if isinstance(note, LinkDisagreement):
            self._session.count("links perhaps disagreed")
            details = {"neighbour": note.name, "step": note.step}
            logger.warning("exchange possibly one-sided %s", fields(**details))
        elif isinstance(note, Lost):
            self._join_late()
        elif note.epoch > self._x.epoch and not self._session.participation.why_stopped:
            logger.info("epoch joined %s", fields(epoch=note.epoch, step=note.step))
            self._join(note.epoch, ExchangePosition(note.step // len(self._turns)))

    def _join(self, epoch: int, place: ExchangePosition) -> None:
        self._session.count("epochs")
        empty = PeerLink(PeerChunks(self._x.size))
        links = dict.fromkeys(self._x.links, empty)
        self._x = replace(self._x, epoch=epoch, links=links, step=-1, offers={})
        self._place, self._is_started = place, False
        self._offer(self._apply(self._shell.state(), BEGIN))

    def _catch_up(self) -> None:
        """Join the peers' exchange if this device has no position of its own.

        It does not join while its first exchange may still count at the other end of a link: a
        device that is only delayed there receives the decision and continues. A device whose
        store was lost receives a decision about an exchange that it was never in.
        """
        stride = len(self._turns) * self.settings.steps  # a peer may be one exchange ahead
        if not self._is_new or not self._is_started or self._ahead <= self._x.step + stride:
            return
        if all(link.used is False for link in self._x.links.values()):
            self._join_late()

    @property
    def _ahead(self) -> int:
        """Return the last exchange in which a peer sent something; -1 before any."""
        return max((link.ahead for link in self._x.links.values()), default=-1)

    def _join_late(self) -> None:
        """Join the exchange that the peers are in.

        With trackers all devices must restart: the share that the peers received of the lost
        tracker would be missing for ever.
        """
        if self._session.participation.why_stopped:  # joining requires an offer
            return
        self._is_new, ahead = False, self._ahead
        epoch = self._x.epoch + int(self._method == "dfl_gt")
        logger.info("epoch joined late %s", fields(epoch=epoch, step=ahead))
        self._join(epoch, ExchangePosition(ahead // len(self._turns)))

    # --- saved state ------------------------------------------------------------------------------

    def _leaves(self, x: PeerExchange) -> dict[str, Leaf]:
        offers = [[number, dict(parts)] for number, parts in sorted(x.offers.items())]
        last = {name: link.last for name, link in x.links.items()}
        place = [self._place.t, self._place.turn]
        return {"run": x.run, "epoch": x.epoch, "place": place, "said": offers, "last": last}

    def _resume(self, kept: Mapping[str, Leaf]) -> None:
        self._is_new, self._is_started = False, True
        self._place = ExchangePosition(*kept["place"])
        offers: dict[int, Offered] = {int(number): parts for number, parts in kept["said"]}
        step = max(offers)
        links = {
            name: replace(link, last=int(kept["last"].get(name, -1)))
            for name, link in self._x.links.items()
        }
        x = replace(self._x, epoch=int(kept["epoch"]), links=links, step=step, offers=offers)
        x = replace(x, parts=tuple(offers[step]))
        self._x = gossip.resumed(x, saved_decisions(self._store, x))
        self._is_mixed = self._is_finished
