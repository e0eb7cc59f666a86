"""What the aggregator knows of one device's numbers: lives, repeats, forks. Pure rules.

A number is ``(life, seq)``. A life is a ledger session: proposed in a ``hello``, confirmed by the
``welcome``, and taken over only when the device *uses* it. Protocol sections 9.3 (A1 to A3, A5).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from edge_sdk.wire.messages import LARGEST, Hello

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
class Row:
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


def hear(ledger: Ledger, hello: Hello, digest: bytes, hold: int) -> tuple[Ledger, bool]:
    """Take a hello; return the ledger after it and whether it is welcome (A1).

    The same hello again changes nothing and is welcomed again; a life that is used up is not
    welcome. ``hold`` releases are added to the account of a device that lost its store: so many
    may have left without our knowing. A full account stays full: its number must fit a message.

    Example:
        >>> fresh = Hello(1, bytes(16), 0, True, (), (1, 1), (), "1", 1)
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
    unseen = hold if hello.lost and ledger.top else 0
    after = replace(
        ledger,
        hid=digest,
        hid_life=hello.life,
        hid_open=hello.open,
        spent=min(LARGEST, max(ledger.spent, hello.spent) + unseen),
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


def standing(ledger: Ledger, key: Key, digest: bytes, row: Row | None) -> Standing:
    """Return what a number means (A3); ``ledger`` is the one after ``used``."""
    if row is not None:
        return Standing.REPEAT if row.digest == digest else Standing.FORK
    if key[0] > ledger.hid_life:
        return Standing.UNKNOWN_LIFE
    if key[0] < ledger.cur and key not in ledger.open:
        return Standing.CLOSED
    return Standing.NEW


def charged(ledger: Ledger, spent: int) -> Ledger:
    """Return the ledger that has seen this count of releases; refused ones count too (A5)."""
    return replace(ledger, spent=max(ledger.spent, spent))
