"""One exchange with the neighbours as a pure machine: what was said, heard, settled and missed.

Of the two ends of a link the one whose id sorts first decides whether the link counts: it does if
the neighbour's vector came before the deadline. The other end waits for that word and asks again
by repeating what it said, so nobody ever waits for two words and there is no cycle. Both ends mix,
or neither does: the average over all devices does not move (`PROTOCOL.md` section 11).

A frozen ``Exchange`` and something that happened go in; the next one and what to say come out. The
shell saves what was ``decided`` before it says anything. Times are seconds of the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from edge_sdk.slices import Floats, Slices, cut
from edge_sdk.uplink import Pace
from edge_sdk.wire.errors import Reason, Refused
from edge_sdk.wire.messages import EPOCH_LEAP, STEP_LEAP, Peer, Settle
from edge_sdk.wire.spec import Vector

PATIENCE = 3.0
"""For how many deadlines the end that waits does so, where it may give up at all."""

_LONG = 4  # questions without an answer, after which a sign of life is answered by one more

Offered = Mapping[str, Vector]
"""What a device offers in one exchange, by part."""


@dataclass(frozen=True, slots=True)
class Link:
    """What is known of one neighbour.

    Attributes:
        heard: What came of it for the present exchange.
        early: What came for a later one, and for which.
        used: Whether the link counts in the present exchange; None until that is settled.
        last: The last exchange in which it counted; -1 before any.
        ahead: The last exchange that the neighbour was heard in; -1 before any.
        is_up: Whether it was heard since a deadline passed in vain. For a link that is down nobody
            waits.
        due: When to say again what was not answered.
        attempts: How often it was said.
    """

    heard: Slices
    early: tuple[int, Slices] | None = None
    used: bool | None = None
    last: int = -1
    ahead: int = -1
    is_up: bool = True
    due: float = 0.0
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class Exchange:
    """A device among its neighbours.

    Attributes:
        me: Its id.
        run: Number of the training run.
        epoch: Which start; a higher one that a neighbour is in must be joined.
        spec: Layout digest of every vector.
        size: Its scalars.
        is_strict: Whether to wait for a decision however long it takes. With a tracker it must be
            so: the two ends of a link that disagree would break what the trackers add up to.
        deadline: Seconds to wait for a neighbour's vector.
        pace: How soon to say again what was not answered.
        links: Neighbours by id, in order.
        step: The present exchange, over or not; -1 before the first.
        parts: What is exchanged in it.
        said: What was offered in the present exchange, and in older ones that may be asked for.
        began: When the present one began.
        quiet: Until when nothing is decided: the link to the broker has just come back, and what
            waited there is still arriving.
    """

    me: str
    run: int
    epoch: int
    spec: bytes
    size: int
    is_strict: bool
    deadline: float
    links: Mapping[str, Link]
    pace: Pace = field(default_factory=Pace)
    step: int = -1
    parts: tuple[str, ...] = ()
    said: Mapping[int, Offered] = field(default_factory=dict)
    began: float = 0.0
    quiet: float = 0.0

    def decides(self, name: str) -> bool:
        """Whether this end says if the link counts."""
        return self.me < name

    @property
    def is_over(self) -> bool:
        """Whether every link is settled, and what counts is here."""
        return all(
            link.used is False or (link.used is True and link.heard.has(self.parts))
            for link in self.links.values()
        )

    @property
    def is_behind(self) -> bool:
        """Whether some neighbour was heard in a later exchange than the present one."""
        return any(link.ahead > self.step for link in self.links.values())

    @property
    def used(self) -> tuple[str, ...]:
        """Neighbours whose vectors count in the present exchange, in order of id."""
        return tuple(name for name, link in sorted(self.links.items()) if link.used)


class Decision(NamedTuple):
    """What must outlive the process before the neighbour hears of it."""

    name: str
    step: int
    used: bool
    last: int
    heard: Slices


class Newer(NamedTuple):
    """Note: a neighbour is in a higher epoch, at this exchange."""

    epoch: int
    step: int


class Disagreed(NamedTuple):
    """Note: the two ends of a link may not have decided the same about an exchange."""

    name: str
    step: int


class Lost(NamedTuple):
    """Note: a link counted in an exchange that this device knows nothing of: its store was lost."""

    name: str
    step: int


Note = Newer | Disagreed | Lost
"""What a shell must know of."""


class Turn(NamedTuple):
    """What comes of one event: the next state, what to save, what to say, what to report."""

    exchange: Exchange
    decided: tuple[Decision, ...] = ()
    says: tuple[tuple[str, Peer | Settle], ...] = ()
    notes: tuple[Note, ...] = ()


def begin(x: Exchange, step: int, offered: Offered, now: float) -> Turn:
    """Begin an exchange: offer to every neighbour that is there, and listen.

    What was offered before is kept as long as the end that waits may still ask for it.
    """
    wanted = {link.last for name, link in x.links.items() if x.decides(name)}
    said = {number: kept for number, kept in x.said.items() if number in wanted}
    links = {name: _fresh(link, step, x.size, now) for name, link in sorted(x.links.items())}
    x = replace(
        x, step=step, parts=tuple(offered), said={**said, step: offered}, links=links, began=now
    )
    says = [say for name in links if _is_told(x, name) for say in _peers(x, name, step)]
    return Turn(x, says=tuple(says))


def hear(x: Exchange, name: str, message: Peer | Settle, now: float) -> Turn:
    """Take in what an enrolled neighbour said; ``tick`` decides afterwards.

    Raises:
        Refused: UNKNOWN_CLIENT: no neighbour; WRONG_RUN, WRONG_SPEC; or as ``Slices.with_``.
    """
    if name not in x.links:
        raise Refused(Reason.UNKNOWN_CLIENT, name)
    if message.run != x.run:
        raise Refused(Reason.WRONG_RUN, f"run {message.run}, here {x.run}")
    if isinstance(message, Peer) and message.spec != x.spec:
        raise Refused(Reason.WRONG_SPEC, message.spec.hex())
    if message.epoch > x.epoch + EPOCH_LEAP:
        raise Refused(Reason.FROM_FUTURE, f"epoch {message.epoch} after {x.epoch}")
    if message.step > max(x.step, 0) + STEP_LEAP:
        raise Refused(Reason.FROM_FUTURE, f"step {message.step} after {x.step}")
    if message.epoch > x.epoch:
        return Turn(x, notes=(Newer(message.epoch, message.step),))
    if message.epoch < x.epoch:
        return Turn(x, says=_epoch_told(x, name, message))
    link = x.links[name]
    back = message.step >= x.step - 1  # else it is still catching up
    link = replace(link, ahead=max(link.ahead, message.step), is_up=link.is_up or back)
    if not x.decides(name) and link.attempts >= _LONG:  # it is back: ask it now
        link = replace(link, attempts=1 + int(link.used is None), due=now)
    if isinstance(message, Peer):
        return _offered(x, name, link, message)
    return _settled(x, name, link, message, now)


def tick(x: Exchange, now: float, draw: Callable[[], float]) -> Turn:
    """Decide what can be decided, give up what is overdue, repeat what was not answered."""
    decided: list[Decision] = []
    says: list[tuple[str, Peer | Settle]] = []
    for name in x.links if x.step >= 0 else ():
        one = _decide(x, name, now) if x.decides(name) else _wait(x, name, now, draw)
        x = one.exchange
        decided += one.decided
        says += one.says
    return Turn(x, tuple(decided), tuple(says))


def repeated(x: Exchange) -> Turn:
    """Say again what was offered, where nothing is settled: the link was away, or this process."""
    open_ = [name for name, link in x.links.items() if link.used is None]
    return Turn(x, says=tuple(say for name in open_ for say in _peers(x, name, x.step)))


def next_due(x: Exchange) -> float | None:
    """When ``tick`` has something to do, or None if only an event can change that."""
    dues = []
    for name, link in x.links.items():
        if x.step < 0 or link.used is False or (link.used and link.heard.has(x.parts)):
            continue
        last = x.began + x.deadline * (1.0 if x.decides(name) else PATIENCE)
        dues.append(max(last, x.quiet) if x.decides(name) else min(link.due, last))
    return min(dues, default=None)


def resumed(x: Exchange, decisions: Mapping[str, Decision]) -> Exchange:
    """Take over what was decided before a restart: it is never decided anew."""
    links = dict(x.links)
    for name, made in decisions.items():
        if name not in links:
            continue
        link = replace(links[name], last=made.last)
        if made.step == x.step:
            link = replace(link, used=made.used, heard=made.heard)
        links[name] = link
    return replace(x, links=links)


def vectors(x: Exchange) -> dict[str, Floats]:
    """Return what counts, by part: a row for each neighbour in ``used``, shape ``(n, size)``."""
    return {
        part: np.array([x.links[name].heard.vector(part) for name in x.used]).reshape(-1, x.size)
        for part in x.parts
    }


# --- how ------------------------------------------------------------------------------------------


def _fresh(link: Link, step: int, size: int, now: float) -> Link:
    early = link.early[1] if link.early is not None and link.early[0] == step else Slices(size)
    kept = link.early if link.early is not None and link.early[0] > step else None
    return replace(link, heard=early, early=kept, used=None, attempts=1, due=now)


def _is_told(x: Exchange, name: str) -> bool:
    """Whether to offer at once: not to who is down, unless one must wait for it anyway."""
    return x.links[name].is_up or (x.is_strict and not x.decides(name))


def _epoch_told(
    x: Exchange, name: str, message: Peer | Settle
) -> tuple[tuple[str, Peer | Settle], ...]:
    """Tell the present epoch and exchange to an end that is in a lower epoch.

    It may hear this when it has joined already. So it is what this end says of the link anyway, and
    no decision that was not made: a slice of the offer while the link is open or the other decides.
    """
    if x.step < 0 or (isinstance(message, Peer) and message.off):
        return ()
    used = x.links[name].used
    if used is None or (used and not x.decides(name)):
        return tuple(_peers(x, name, x.step)[:1])
    return ((name, _settle(x, x.step, used=used)),)


def _offered(x: Exchange, name: str, link: Link, peer: Peer) -> Turn:
    if peer.step == x.step:
        if link.used is None or not link.heard.has(x.parts):
            link = replace(link, heard=link.heard.with_(peer))
    elif peer.step > x.step and (link.early is None or peer.step >= link.early[0]):
        is_same = link.early is not None and link.early[0] == peer.step
        before = link.early[1] if link.early is not None and is_same else Slices(x.size)
        link = replace(link, early=(peer.step, before.with_(peer)))
    x = _with(x, name, link)
    is_question = x.decides(name) and peer.step <= x.step and peer.off == 0
    return Turn(x, says=_answered(x, name, peer)) if is_question else Turn(x)


def _answered(x: Exchange, name: str, peer: Peer) -> tuple[tuple[str, Peer | Settle], ...]:
    """Repeat what was decided about an exchange, to the end that did not hear it.

    Once for all slices that it repeats. For an exchange before the last in which the link counted
    it is told that one: an end that was in it knows, and one that was not has lost its store.
    """
    link, offered = x.links[name], x.said.get(peer.step)
    is_first = offered is None or peer.part == next(iter(offered))
    is_open = peer.step == x.step and link.used is None
    if is_open or not is_first:
        return ()
    if peer.step < link.last:
        return ((name, _settle(x, link.last, used=True)),)
    used = peer.step == link.last
    told = _peers(x, name, peer.step) if used and peer.step in x.said else []
    return (*told, (name, _settle(x, peer.step, used=used)))


def _settled(x: Exchange, name: str, link: Link, said: Settle, now: float) -> Turn:
    """Follow the end that decides; hear that the other one has gone on."""
    present = said.step == x.step and link.used is None
    notes: tuple[Note, ...] = ()
    decided: tuple[Decision, ...] = ()
    if x.decides(name):
        if not said.used and present:
            link = replace(link, used=False)
            decided = (Decision(name, x.step, used=False, last=link.last, heard=link.heard),)
        elif not said.used and said.step == link.last:
            notes = (Disagreed(name, said.step),)
    elif present:
        last = x.step if said.used else link.last
        link = replace(link, used=said.used, last=last, due=now)
    elif said.used and said.step > x.step:  # nobody is counted where it was not
        notes = (Lost(name, said.step),)
    elif said.used and said.step > link.last:
        notes = (Disagreed(name, said.step),)
    return Turn(_with(x, name, link), decided, notes=notes)


def _decide(x: Exchange, name: str, now: float) -> Turn:
    link = x.links[name]
    if link.used is not None or now < x.quiet:
        return Turn(x)
    overdue = now >= x.began + x.deadline
    if link.heard.has(x.parts):
        link = replace(link, used=True, last=x.step)
    elif overdue or link.ahead > x.step or not link.is_up:
        link = replace(link, used=False, is_up=link.is_up and not overdue)
    else:
        return Turn(x)
    kept = link.heard if link.used else Slices(x.size)
    decision = Decision(name, x.step, bool(link.used), link.last, kept)
    word = _settle(x, x.step, used=bool(link.used))
    return Turn(_with(x, name, link), (decision,), ((name, word),))


def _wait(x: Exchange, name: str, now: float, draw: Callable[[], float]) -> Turn:
    link = x.links[name]
    if link.used is False or (link.used and link.heard.has(x.parts)):
        return Turn(x)
    overdue = now >= x.began + PATIENCE * x.deadline
    if not x.is_strict and now >= x.quiet and (overdue or not link.is_up):
        link = replace(link, used=False, is_up=link.is_up and not overdue)
        return Turn(_with(x, name, link), says=((name, _settle(x, x.step, used=False)),))
    if now < link.due:
        return Turn(x)
    says = () if link.attempts == 1 and link.used is None else tuple(_peers(x, name, x.step))
    wait = x.pace.wait(link.attempts, 0.5 + 0.5 * draw())
    link = replace(link, attempts=link.attempts + 1, due=now + wait)
    return Turn(_with(x, name, link), says=says)


def _with(x: Exchange, name: str, link: Link) -> Exchange:
    return replace(x, links={**x.links, name: link})


def _settle(x: Exchange, step: int, *, used: bool) -> Settle:
    return Settle(run=x.run, epoch=x.epoch, step=step, used=used)


def _peers(x: Exchange, name: str, step: int) -> list[tuple[str, Peer | Settle]]:
    """Write every slice of what was offered in an exchange."""
    return [
        (
            name,
            Peer(
                run=x.run,
                epoch=x.epoch,
                step=step,
                part=part,  # type: ignore[arg-type]
                degree=len(x.links),
                spec=x.spec,
                enc="f4",
                off=off,
                num=num,
                blob=blob,
            ),
        )
        for part, vector in x.said[step].items()
        for off, num, blob in cut(vector)
    ]
