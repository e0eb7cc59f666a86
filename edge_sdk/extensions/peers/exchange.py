"""Decide one peer exchange as a pure state machine: offers, receipts, settled and missed links.

Of the two ends of a link, the one whose id sorts first decides whether the link counts: it does if
the peer's vector arrived before the deadline. The other end waits for that decision and requests it
by repeating its offer, so no end ever waits for two decisions and there is no cycle. Both ends mix,
or neither does: the average over all devices does not move (`PROTOCOL.md` section 11).

The functions take a frozen ``PeerExchange`` and an event, and return the next one and the messages
to send. The caller saves what was ``decided`` before it sends anything. Times are seconds of the
monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.peers.chunks import Floats, PeerChunks, cut
from edge_sdk.extensions.peers.exchange_types import (
    ExchangeStep,
    LinkDecision,
    LinkDisagreement,
    Lost,
    NewerEpoch,
    Note,
    Offered,
    PeerExchange,
    PeerLink,
)
from edge_sdk.extensions.peers.messages import PeerMessage, SettleMessage
from edge_sdk.protocol.messages import EPOCH_LEAP, STEP_LEAP

PATIENCE = 3.0
"""Number of deadlines that the waiting end waits, where it may give up at all."""

_LONG = 4  # unanswered repeats after which an arrival triggers one more


def begin(x: PeerExchange, step: int, offered: Offered, now: float) -> ExchangeStep:
    """Begin an exchange: send the offer to every peer whose link is up, and wait.

    Earlier offers are kept as long as the waiting end may still request them.
    """
    wanted = {link.last for name, link in x.links.items() if x.decides(name)}
    offers = {number: kept for number, kept in x.offers.items() if number in wanted}
    links = {name: _fresh(link, step, x.size, now) for name, link in sorted(x.links.items())}
    x = replace(
        x, step=step, parts=tuple(offered), offers={**offers, step: offered}, links=links, began=now
    )
    messages = [
        outgoing for name in links if _may_offer(x, name) for outgoing in _peers(x, name, step)
    ]
    return ExchangeStep(x, messages=tuple(messages))


def receive(
    x: PeerExchange, name: str, message: PeerMessage | SettleMessage, now: float
) -> ExchangeStep:
    """Process a message from an enrolled peer; ``tick`` decides afterwards.

    Raises:
        Refused: UNKNOWN_CLIENT: not a peer; WRONG_RUN, WRONG_SPEC; or as ``PeerChunks.with_``.
    """
    if name not in x.links:
        raise Refused(Reason.UNKNOWN_CLIENT, f"{name} is not a peer of this device")
    if message.run != x.run:
        raise Refused(Reason.WRONG_RUN, f"run {message.run}, expected {x.run}")
    if isinstance(message, PeerMessage) and message.spec != x.spec:
        raise Refused(Reason.WRONG_SPEC, f"layout {message.spec.hex()}, expected {x.spec.hex()}")
    if message.epoch > x.epoch + EPOCH_LEAP:
        raise Refused(Reason.FROM_FUTURE, f"epoch {message.epoch} is far above {x.epoch}")
    if message.step > max(x.step, 0) + STEP_LEAP:
        raise Refused(Reason.FROM_FUTURE, f"step {message.step} is far above {x.step}")
    if message.epoch > x.epoch:
        return ExchangeStep(x, notes=(NewerEpoch(message.epoch, message.step),))
    if message.epoch < x.epoch:
        return ExchangeStep(x, messages=_epoch_notice(x, name, message))
    link = x.links[name]
    back = message.step >= x.step - 1  # otherwise it is still catching up
    link = replace(link, ahead=max(link.ahead, message.step), is_up=link.is_up or back)
    if not x.decides(name) and link.attempts >= _LONG:  # it is back: request it now
        link = replace(link, attempts=1 + int(link.used is None), due=now)
    if isinstance(message, PeerMessage):
        return _offered(x, name, link, message)
    return _settled(x, name, link, message, now)


def tick(x: PeerExchange, now: float, draw: Callable[[], float]) -> ExchangeStep:
    """Decide links that can be decided, give up overdue ones, repeat unanswered offers."""
    decided: list[LinkDecision] = []
    messages: list[tuple[str, PeerMessage | SettleMessage]] = []
    for name in x.links if x.step >= 0 else ():
        one = _decide(x, name, now) if x.decides(name) else _wait(x, name, now, draw)
        x = one.exchange
        decided += one.decided
        messages += one.messages
    return ExchangeStep(x, tuple(decided), tuple(messages))


def repeated(x: PeerExchange) -> ExchangeStep:
    """Repeat the offer on every unsettled link, after a lost connection or a restart."""
    open_ = [name for name, link in x.links.items() if link.used is None]
    return ExchangeStep(
        x, messages=tuple(outgoing for name in open_ for outgoing in _peers(x, name, x.step))
    )


def next_due(x: PeerExchange) -> float | None:
    """Return the time of the next action of ``tick``, or None if only an event can cause one."""
    dues = []
    for name, link in x.links.items():
        if x.step < 0 or link.used is False or (link.used and link.received.has(x.parts)):
            continue
        last = x.began + x.deadline * (1.0 if x.decides(name) else PATIENCE)
        dues.append(max(last, x.quiet) if x.decides(name) else min(link.due, last))
    return min(dues, default=None)


def resumed(x: PeerExchange, decisions: Mapping[str, LinkDecision]) -> PeerExchange:
    """Restore the decisions made before a restart: no link is decided twice."""
    links = dict(x.links)
    for name, made in decisions.items():
        if name not in links:
            continue
        link = replace(links[name], last=made.last)
        if made.step == x.step:
            link = replace(link, used=made.used, received=made.received)
        links[name] = link
    return replace(x, links=links)


def vectors(x: PeerExchange) -> dict[str, Floats]:
    """Return the counting vectors by part, one row per peer in ``used``, shape ``(n, size)``."""
    return {
        part: np.array([x.links[name].received.vector(part) for name in x.used]).reshape(-1, x.size)
        for part in x.parts
    }


# --- private functions ----------------------------------------------------------------------------


def _fresh(link: PeerLink, step: int, size: int, now: float) -> PeerLink:
    early = link.early[1] if link.early is not None and link.early[0] == step else PeerChunks(size)
    kept = link.early if link.early is not None and link.early[0] > step else None
    return replace(link, received=early, early=kept, used=None, attempts=1, due=now)


def _may_offer(x: PeerExchange, name: str) -> bool:
    """Return whether to offer at once: the link is up, or this end must wait for a decision."""
    return x.links[name].is_up or (x.is_strict and not x.decides(name))


def _epoch_notice(
    x: PeerExchange, name: str, message: PeerMessage | SettleMessage
) -> tuple[tuple[str, PeerMessage | SettleMessage], ...]:
    """Return the present epoch and exchange, for an end that is in a lower epoch.

    That end may receive this after it has joined. So the message is one that this end sends on the
    link anyway, and no decision that was not made: a slice of the offer while the link is open or
    the other end decides.
    """
    if x.step < 0 or (isinstance(message, PeerMessage) and message.off):
        return ()
    used = x.links[name].used
    if used is None or (used and not x.decides(name)):
        return tuple(_peers(x, name, x.step)[:1])
    return ((name, _settle(x, x.step, used=used)),)


def _offered(x: PeerExchange, name: str, link: PeerLink, peer: PeerMessage) -> ExchangeStep:
    if peer.step == x.step:
        if link.used is None or not link.received.has(x.parts):
            link = replace(link, received=link.received.with_(peer))
    elif peer.step > x.step and (link.early is None or peer.step >= link.early[0]):
        is_same = link.early is not None and link.early[0] == peer.step
        before = link.early[1] if link.early is not None and is_same else PeerChunks(x.size)
        link = replace(link, early=(peer.step, before.with_(peer)))
    x = _with(x, name, link)
    is_question = x.decides(name) and peer.step <= x.step and peer.off == 0
    return ExchangeStep(x, messages=_answered(x, name, peer)) if is_question else ExchangeStep(x)


def _answered(
    x: PeerExchange, name: str, peer: PeerMessage
) -> tuple[tuple[str, PeerMessage | SettleMessage], ...]:
    """Repeat the decision about an exchange for the end that did not receive it.

    Sent once for all slices that the peer repeats. For an exchange before the last in which the
    link counted, the answer is about that last one: an end that took part recognises it, and
    an end that did not has lost its store.
    """
    link, offered = x.links[name], x.offers.get(peer.step)
    is_first = offered is None or peer.part == next(iter(offered))
    is_open = peer.step == x.step and link.used is None
    if is_open or not is_first:
        return ()
    if peer.step < link.last:
        return ((name, _settle(x, link.last, used=True)),)
    used = peer.step == link.last
    repeat = _peers(x, name, peer.step) if used and peer.step in x.offers else []
    return (*repeat, (name, _settle(x, peer.step, used=used)))


def _settled(
    x: PeerExchange, name: str, link: PeerLink, offers: SettleMessage, now: float
) -> ExchangeStep:
    present = offers.step == x.step and link.used is None
    notes: tuple[Note, ...] = ()
    decided: tuple[LinkDecision, ...] = ()
    if x.decides(name):
        if not offers.used and present:
            link = replace(link, used=False)
            decided = (
                LinkDecision(name, x.step, used=False, last=link.last, received=link.received),
            )
        elif not offers.used and offers.step == link.last:
            notes = (LinkDisagreement(name, offers.step),)
    elif present:
        last = x.step if offers.used else link.last
        link = replace(link, used=offers.used, last=last, due=now)
    elif offers.used and offers.step > x.step:  # no device counts in an exchange it missed
        notes = (Lost(name, offers.step),)
    elif offers.used and offers.step > link.last:
        notes = (LinkDisagreement(name, offers.step),)
    return ExchangeStep(_with(x, name, link), decided, notes=notes)


def _decide(x: PeerExchange, name: str, now: float) -> ExchangeStep:
    link = x.links[name]
    if link.used is not None or now < x.quiet:
        return ExchangeStep(x)
    overdue = now >= x.began + x.deadline
    if link.received.has(x.parts):
        link = replace(link, used=True, last=x.step)
    elif overdue or link.ahead > x.step or not link.is_up:
        link = replace(link, used=False, is_up=link.is_up and not overdue)
    else:
        return ExchangeStep(x)
    kept = link.received if link.used else PeerChunks(x.size)
    decision = LinkDecision(name, x.step, bool(link.used), link.last, kept)
    word = _settle(x, x.step, used=bool(link.used))
    return ExchangeStep(_with(x, name, link), (decision,), ((name, word),))


def _wait(x: PeerExchange, name: str, now: float, draw: Callable[[], float]) -> ExchangeStep:
    link = x.links[name]
    if link.used is False or (link.used and link.received.has(x.parts)):
        return ExchangeStep(x)
    overdue = now >= x.began + PATIENCE * x.deadline
    if not x.is_strict and now >= x.quiet and (overdue or not link.is_up):
        link = replace(link, used=False, is_up=link.is_up and not overdue)
        return ExchangeStep(
            _with(x, name, link), messages=((name, _settle(x, x.step, used=False)),)
        )
    if now < link.due:
        return ExchangeStep(x)
    messages = () if link.attempts == 1 and link.used is None else tuple(_peers(x, name, x.step))
    wait = x.pace.wait(link.attempts, 0.5 + 0.5 * draw())
    link = replace(link, attempts=link.attempts + 1, due=now + wait)
    return ExchangeStep(_with(x, name, link), messages=messages)


def _with(x: PeerExchange, name: str, link: PeerLink) -> PeerExchange:
    return replace(x, links={**x.links, name: link})


def _settle(x: PeerExchange, step: int, *, used: bool) -> SettleMessage:
    return SettleMessage(run=x.run, epoch=x.epoch, step=step, used=used)


def _peers(x: PeerExchange, name: str, step: int) -> list[tuple[str, PeerMessage | SettleMessage]]:
    return [
        (
            name,
            PeerMessage(
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
        for part, vector in x.offers[step].items()
        for off, num, blob in cut(vector)
    ]
