"""A device among its neighbours: it steps, offers, waits, mixes, and survives being switched off.

What is offered has been charged and saved before a byte of it leaves; what was decided about a
link is saved before the neighbour hears of it. So a process that is killed at any line stands,
started again, where it stood, and its trackers still add up. Only a device whose store is lost
must have everybody's trackers started anew: it does so by the next epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edge_sdk import gossip
from edge_sdk.gossip import Decision, Disagreed, Exchange, Link, Lost, Note, Offered
from edge_sdk.methods.gossip import ADAPT, ALONE, BEGIN, MIX, turns
from edge_sdk.neighbourhood import Neighbourhood
from edge_sdk.program import fields
from edge_sdk.session import Session
from edge_sdk.slices import Slices
from edge_sdk.store import Store
from edge_sdk.uplink import Pace
from edge_sdk.wire import messages as m
from edge_sdk.wire.codec import Leaf, pack_leaves, unpack_leaves
from edge_sdk.wire.errors import Refused
from edge_sdk.wire.method import Array, Task
from edge_sdk.wire.spec import ParamSpec

logger = logging.getLogger(__name__)

_QUIET = 0.25  # share of the deadline in which nothing is decided after the link came back
_QUIET_MOST = 5.0  # s


@dataclass(frozen=True, slots=True)
class Shell:
    """What the exchange needs of the device's shell.

    Attributes:
        state: What the half has learned so far.
        think: Returns what the half makes of a task; nothing is saved.
        take_over: Forecast with this from now on; nothing is saved.
        keep: Charges so many releases and saves, in one transaction; raises ``BudgetSpent`` or
            ``StoreFull``, and then nothing has happened.
    """

    state: Callable[[], Any]
    think: Callable[[Any, Task], Any]
    take_over: Callable[[Any], None]
    keep: Callable[[Any, Mapping[str, Leaf], int], None]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a device stands: step ``t`` of the run, and the turn of its exchange."""

    t: int = 0
    turn: int = 0


class Neighbours:
    """The exchange of one run with one neighbourhood, driven by ``serve``.

    Attributes:
        hood: Who the neighbours are, and the numbers.
    """

    def __init__(
        self,
        hood: Neighbourhood,
        method: str,
        *,
        me: str,
        run: int,
        spec: ParamSpec,
        session: Session,
        store: Store,
        shell: Shell,
        pace: Pace,
        kept: Mapping[str, Leaf] | None,
    ) -> None:
        """Go on where ``kept`` says, or begin."""
        self.hood, self._method, self._spec = hood, method, spec
        self._session, self._store, self._shell = session, store, shell
        self._turns = turns(method, hood.values)
        self._place = Place()
        self._began = self._heard = self._linked_at = session.now
        self._is_mixed = self._has_begun = False
        empty = Link(Slices(spec.shared_size))
        self._x = Exchange(
            me,
            run,
            hood.epoch,
            spec.digest,
            spec.shared_size,
            is_strict=method == "dfl_gt" or bool(hood.values.get("insist")),
            deadline=hood.deadline,
            links=dict.fromkeys(sorted(hood.keys), empty),
            pace=pace,
            began=session.now,
        )
        self._is_new = True
        if kept is not None and int(kept["run"]) == run and int(kept["epoch"]) >= hood.epoch:
            self._resume(kept)
        session.meet(hood.keys)

    # --- what the client asks ---------------------------------------------------------------------

    @property
    def next_due(self) -> float:
        """When ``serve`` has something to do, if nothing arrives."""
        if not self._session.is_linked or self._is_finished:
            return self._session.now + self.hood.deadline
        if not self._has_begun:
            return self._session.now
        if self._is_mixed:
            return self._session.now if self._x.is_behind else self._began + self.hood.every
        due = gossip.next_due(self._x)
        return self._session.now if due is None else due

    @property
    def is_done(self) -> bool:
        """Whether all steps are taken, and no neighbour has asked for anything for a while."""
        silent = self._session.now - max(self._heard, self._began)
        return self._is_finished and silent >= gossip.PATIENCE * self.hood.deadline

    def status(self) -> dict[str, Any]:
        """Say where the exchange stands. Nothing measured is in it."""
        counts = self._session.counts
        return {
            "epoch": self._x.epoch,
            "step": self._place.t,
            "last": self.hood.last,
            "exchanges": counts["exchanges"],
            "mixed": counts["links used"],
            "missed": counts["links missed"],
            "links": {
                name: "up" if link.is_up else "down" for name, link in sorted(self._x.links.items())
            },
        }

    def serve(self) -> None:
        """Take in what neighbours said, settle what can be settled, and go on when it is time."""
        session = self._session
        if not session.is_linked:
            return
        if session.linked_at > self._linked_at:
            self._linked_at = now = session.linked_at
            quiet = now + min(_QUIET * self.hood.deadline, _QUIET_MOST)
            self._x = replace(self._x, began=now, quiet=quiet)
            if self._has_begun:
                self._follow(gossip.repeated(self._x))
        while session.mail:
            letter = session.mail.popleft()
            self._heard = session.now
            assert isinstance(letter.message, (m.Peer, m.Settle))
            try:
                turn = gossip.hear(self._x, letter.sender, letter.message, session.now)
            except Refused as refused:
                session.counts[f"neighbours refused {refused.reason.name}"] += 1
                continue
            self._follow(turn)
        if self._has_begun:
            self._follow(gossip.tick(self._x, session.now, session.chance().draw))
        self._catch_up()
        self._go_on()

    # --- steps ------------------------------------------------------------------------------------

    @property
    def _is_finished(self) -> bool:
        return self._place.t >= self.hood.last

    def _go_on(self) -> None:
        """Mix when all is settled; begin the next exchange when it is time."""
        if self._has_begun and not self._is_mixed and self._x.is_over:
            self._mix()
        if self._is_finished or self._session.why_stopped:
            return
        if not self._has_begun:
            self._join(self._x.epoch, self._place)
        if self._is_mixed and (self._place.turn or self._is_time):
            self._offer(self._shell.state())

    @property
    def _is_time(self) -> bool:
        return self._x.is_behind or self._session.now >= self._began + self.hood.every

    def _mix(self) -> None:
        """Mix what counts, and take the steps up to the next exchange."""
        x, used = self._x, self._x.used
        degrees = {name: x.links[name].heard.degree for name in used}
        weights = np.array([self.hood.weight(degrees, name) for name in used])
        state = self._think(self._shell.state(), MIX, {"weights": weights, **gossip.vectors(x)})
        counts = self._session.counts
        counts["exchanges"] += 1
        counts["links used"] += len(used)
        counts["links missed"] += len(x.links) - len(used)
        logger.info("mixed %s", fields(epoch=x.epoch, step=self._place.t, used=",".join(used)))
        place, last = self._place, self._place.turn + 1 == len(self._turns)
        self._place = Place(place.t + 1) if last else Place(place.t, place.turn + 1)
        while last and self._place.t % self.hood.steps and not self._is_finished:
            state = self._think(state, ALONE)
            self._place = Place(self._place.t + 1)
        self._is_mixed, self._is_new = True, False
        self._shell.take_over(state)
        self._session.exchanged = {
            "step": self._place.t,
            "mixed": counts["links used"],
            "missed": counts["links missed"],
        }
        if self._is_finished:
            self._shell.keep(state, self._leaves(self._x), 0)

    def _offer(self, state: Any) -> None:  # noqa: ANN401 - the half's own type
        """Begin the next exchange: make ready, charge, save, say."""
        before = self._place
        state = self._think(state, ADAPT)
        parts = self._turns[self._place.turn]
        offered = {part: state.offered(self._spec, part).astype(np.float32) for part in parts}
        turn = gossip.begin(self._x, self._number, offered, self._session.now)
        self._shell.keep(state, self._leaves(turn.exchange), 1)
        if not before.turn:
            self._began = self._session.now
        self._has_begun, self._is_mixed = True, False
        self._follow(turn)

    @property
    def _number(self) -> int:
        """The present exchange as it is numbered on the wire."""
        return self._place.t * len(self._turns) + self._place.turn

    def _think(self, state: Any, ask: str, arrays: Mapping[str, Array] | None = None) -> Any:  # noqa: ANN401 - as above
        place, values = self._place, {**self.hood.values, "turn": float(self._place.turn)}
        task = Task(self._x.me, self._x.epoch, ask, place.t, values=values, arrays=arrays or {})
        return self._shell.think(state, task)

    # --- epochs, and coming late ------------------------------------------------------------------

    def _follow(self, turn: gossip.Turn) -> None:
        """Save what was decided, then say what it makes us say."""
        self._x = turn.exchange
        for made in turn.decided:
            self._store.file_paper(_paper(made.name), _written(made, self._x))
        for name, message in turn.says:
            self._session.tell(name, message)
        for note in turn.notes:
            self._note(note)

    def _note(self, note: Note) -> None:
        if isinstance(note, Disagreed):
            self._session.counts["links perhaps disagreed"] += 1
            told = {"neighbour": note.name, "step": note.step}
            logger.warning("a link may have counted at one end only %s", fields(**told))
        elif isinstance(note, Lost):
            self._join_late()
        elif note.epoch > self._x.epoch and not self._session.why_stopped:
            logger.info("epoch joined %s", fields(epoch=note.epoch, step=note.step))
            self._join(note.epoch, Place(note.step // len(self._turns)))

    def _join(self, epoch: int, place: Place) -> None:
        """Start, or start anew with what was learned: trackers from this device's own gradient."""
        self._session.counts["epochs"] += 1
        empty = Link(Slices(self._x.size))
        links = dict.fromkeys(self._x.links, empty)
        self._x = replace(self._x, epoch=epoch, links=links, step=-1, said={})
        self._place, self._has_begun = place, False
        self._offer(self._think(self._shell.state(), BEGIN))

    def _catch_up(self) -> None:
        """A device that has nothing to go on from joins where its neighbours are.

        Not while its first exchange may count at the other end of some link: a device that is only
        held up there is told so, and goes on. One whose store is lost is told that.
        """
        stride = len(self._turns) * self.hood.steps  # a neighbour may be one exchange ahead
        if not self._is_new or not self._has_begun or self._ahead <= self._x.step + stride:
            return
        if all(link.used is False for link in self._x.links.values()):
            self._join_late()

    @property
    def _ahead(self) -> int:
        """The last exchange that any neighbour was heard in; -1 before any."""
        return max((link.ahead for link in self._x.links.values()), default=-1)

    def _join_late(self) -> None:
        """Join where the neighbours are.

        With trackers everybody must start anew: what this one's neighbours took of the tracker it
        has lost would be missing for ever.
        """
        if self._session.why_stopped:  # to join is to offer
            return
        self._is_new, ahead = False, self._ahead
        epoch = self._x.epoch + int(self._method == "dfl_gt")
        logger.info("joining late %s", fields(epoch=epoch, step=ahead))
        self._join(epoch, Place(ahead // len(self._turns)))

    # --- what outlives the process ----------------------------------------------------------------

    def _leaves(self, x: Exchange) -> dict[str, Leaf]:
        said = [[number, dict(parts)] for number, parts in sorted(x.said.items())]
        last = {name: link.last for name, link in x.links.items()}
        place = [self._place.t, self._place.turn]
        return {"run": x.run, "epoch": x.epoch, "place": place, "said": said, "last": last}

    def _resume(self, kept: Mapping[str, Leaf]) -> None:
        """Stand where the process before this one stood."""
        self._is_new, self._has_begun = False, True
        self._place = Place(*kept["place"])
        said: dict[int, Offered] = {int(number): parts for number, parts in kept["said"]}
        step = max(said)
        links = {
            name: replace(link, last=int(kept["last"].get(name, -1)))
            for name, link in self._x.links.items()
        }
        x = replace(self._x, epoch=int(kept["epoch"]), links=links, step=step, said=said)
        x = replace(x, parts=tuple(said[step]))
        self._x = gossip.resumed(x, self._decisions(x))
        self._is_mixed = self._is_finished

    def _decisions(self, x: Exchange) -> dict[str, Decision]:
        found = {}
        for name in x.links:
            paper = self._store.paper(_paper(name))
            leaves = unpack_leaves(paper) if paper is not None else {}
            if (leaves.get("run"), leaves.get("epoch")) != (x.run, x.epoch):
                continue
            heard = Slices(x.size)
            for part, off, values in leaves["got"]:
                heard = replace(heard, got={**heard.got, (part, off): values.astype(np.float64)})
            heard = replace(heard, degree=leaves["degree"])
            found[name] = Decision(name, leaves["step"], leaves["used"], leaves["last"], heard)
        return found


LINK = "link "
"""What the names of papers about single neighbours begin with."""


def _paper(name: str) -> str:
    return f"{LINK}{name}"


def _written(made: Decision, x: Exchange) -> bytes:
    """Write a decision down; what a neighbour sent had 32 bits a number, and so it is kept."""
    got = [[p, off, v.astype(np.float32)] for (p, off), v in sorted(made.heard.got.items())]
    return pack_leaves(
        {
            "run": x.run,
            "epoch": x.epoch,
            "step": made.step,
            "used": made.used,
            "last": made.last,
            "degree": made.heard.degree,
            "got": got,
        }
    )
