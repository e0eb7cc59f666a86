"""What the aggregator knows of one device's numbers: lives, repeats, forks. Pure rules.

A number is ``(life, seq)``. A life is a ledger session: proposed in a ``hello``, confirmed by the
``welcome``, and taken over only when the device *uses* it. Protocol sections 9.3 (A1 to A3, A5).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from edge_sdk.wire.errors import Reason, Refused
from edge_sdk.wire.protocol.messages import (
    LARGEST,
    LIFE_LEAP,
    RELEASES_LEAP,
    RELEASES_LIMIT,
    HelloMessage,
)

Key = tuple[int, int]
"""``(life, seq)``: the number of one release."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """One device's numbers, as they are saved.

    Attributes:
        cur: Highest life seen in use.
        hid: Digest of the last accepted hello; empty before the first.
        hid_life: The life it proposed.
        hid_open: The numbers it said were still in the outbox.
        open: Numbers of older lives that may still be settled.
        spent: The second privacy ledger: releases the device has charged, as far as we know.
        cmd: Highest command number issued.
    """

    cur: int = 0
    hid: bytes = b""
    hid_life: int = 0
    hid_open: tuple[Key, ...] = ()
    open: tuple[Key, ...] = ()
    spent: int = 0
    cmd: int = 0

    @property
    def top(self) -> int:
        """The highest life ever confirmed; the next must be larger."""
        return max(self.cur, self.hid_life)


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """How one number was settled.

    Attributes:
        digest: SHA-256 of the body it was used for.
        code: 0, or the final reason.
        run: Run it was counted in.
        round: Round it was counted in.
    """

    digest: bytes
    code: int
    run: int
    round: int


class Standing(Enum):
    """What a number means here before anybody looks at the body."""

    NEW = "new"  # to be judged
    REPEAT = "repeat"  # settled with these very bytes: say the same again
    FORK = "fork"  # settled with other bytes: two processes use one identity
    CLOSED = "closed"  # of a life that is over, and not listed as open when it ended
    UNKNOWN_LIFE = "unknown life"  # never welcomed here: say hello


def hear(ledger: Ledger, hello: HelloMessage, digest: bytes, hold: int) -> tuple[Ledger, bool]:
    """Take a hello; return the ledger after it and whether it is welcome (A1).

    The same hello again changes nothing and is welcomed again; a life that is used up is not
    welcome. ``hold`` releases are added to the account of a device that lost its store: so many
    may have left without our knowing. A full account stays full: its number must fit a message.

    Raises:
        Refused: MALFORMED: a life or a count that leaps so far ahead that no device gets there.

    Example:
        >>> fresh = HelloMessage(1, bytes(16), 0, True, (), (1, 1), (), "1", 1)
        >>> known, welcome = hear(Ledger(), fresh, b"a", hold=2)
        >>> welcome, hear(known, fresh, b"a", hold=2)[0] == known
        (True, True)
        >>> hear(known, fresh, b"other nonce", hold=2)[1]
        False
    """
    if digest == ledger.hid:
        return ledger, True
    if hello.life <= ledger.top:
        return ledger, False
    check_leap("life", hello.life, ledger.top, LIFE_LEAP)
    check_leap("spent", hello.spent, ledger.spent, RELEASES_LEAP)
    unseen = hold if hello.lost and ledger.top else 0
    after = replace(
        ledger,
        hid=digest,
        hid_life=hello.life,
        hid_open=hello.open,
        spent=min(RELEASES_LIMIT, max(ledger.spent, hello.spent) + unseen),
    )
    return after, True


def used(ledger: Ledger, life: int) -> Ledger:
    """Return the ledger after a numbered message of this life: only use promotes (A2).

    Of what the hello listed, a number stays open if it was open before or belongs to a life that
    was still in use: what had been settled and pruned is never opened again.
    """
    if life != ledger.hid_life or life <= ledger.cur:
        return ledger
    still = tuple(k for k in ledger.hid_open if k in ledger.open or k[0] >= ledger.cur)
    return replace(ledger, cur=life, open=still)


def standing(ledger: Ledger, key: Key, digest: bytes, row: LedgerRow | None) -> Standing:
    """Return what a number means (A3); ``ledger`` is the one after ``used``."""
    if row is not None:
        return Standing.REPEAT if row.digest == digest else Standing.FORK
    if key[0] > ledger.hid_life:
        return Standing.UNKNOWN_LIFE
    if key[0] < ledger.cur and key not in ledger.open:
        return Standing.CLOSED
    return Standing.NEW


def charged(ledger: Ledger, spent: int) -> Ledger:
    """Return the ledger that has seen this count of releases; refused ones count too (A5).

    Raises:
        Refused: MALFORMED: a count that leaps so far ahead that no device gets there.
    """
    check_leap("spent", spent, ledger.spent, RELEASES_LEAP)
    return replace(ledger, spent=max(ledger.spent, spent))


def check_leap(name: str, said: int, known: int, most: int) -> None:
    """Refuse a counter of a device that is further ahead of ours than it can have counted.

    Raises:
        Refused: MALFORMED.

    Example:
        >>> check_leap("life", 1_000_000, known=0, most=2**20)
        >>> check_leap("life", 2**40, known=5, most=2**20)
        Traceback (most recent call last):
        edge_sdk.wire.errors.Refused: MALFORMED: life 1099511627776 is more than 1048576 above 5
    """
    if said > known + most:
        raise Refused(Reason.MALFORMED, f"{name} {said} is more than {most} above {known}")


def renewed(before: Ledger, *, life: int, cmd: int, spent: int = 0) -> Ledger:
    """Return the ledger that a device begins with under a new key.

    The count of releases begins anew. Lives go on, so that no number is used twice, and so do
    command numbers; but what no device can have got to is left behind.

    Args:
        before: The ledger under the old key.
        life: Highest life of the journal that a device can have got to.
        cmd: Highest command number that was issued, as far as it can be used.
        spent: Releases to count from.

    Example:
        >>> renewed(Ledger(cur=3, hid_life=4, spent=20, cmd=2), life=3, cmd=2)
        Ledger(cur=3, hid=b'', hid_life=4, hid_open=(), open=(), spent=0, cmd=2)
        >>> renewed(Ledger(cur=2**40, hid_life=2**40), life=3, cmd=0).cur
        3
    """
    cmd = before.cmd if before.cmd <= LARGEST // 2 else cmd
    if before.top <= LIFE_LEAP:
        return replace(before, cmd=cmd, spent=spent)
    return Ledger(cur=life, cmd=cmd, spent=spent)


def usable(found: Ledger) -> tuple[Ledger, tuple[str, ...]]:
    """Return a ledger whose every number fits a message, and the names of those that did not.

    A number that is too large becomes the largest: so a count of releases grants nothing more, and
    no life or command is numbered below one that was used. A new key begins a new ledger.

    Example:
        >>> usable(Ledger(cur=3, spent=2**63 - 1))[1]
        ('spent',)
    """
    most = {"cur": LARGEST, "hid_life": LARGEST, "spent": RELEASES_LIMIT, "cmd": LARGEST}
    wrong = {
        name: bound if getattr(found, name) > bound else 0
        for name, bound in most.items()
        if not 0 <= getattr(found, name) <= bound
    }
    return replace(found, **wrong), tuple(wrong)  # type: ignore[arg-type]
