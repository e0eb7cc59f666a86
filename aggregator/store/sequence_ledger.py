"""Rules of one device's sequence numbers: lives, repeats and forks. Pure.

A number is ``(life, seq)``. A life is a ledger session: proposed in a ``hello``, confirmed by the
``welcome``, and adopted only when the device *uses* it. Protocol section 9.3 (A1 to A3, A5).
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
    """Saved numbers of one device.

    Attributes:
        cur: Highest life seen in use.
        hid: Digest of the last accepted hello; empty before the first.
        hid_life: Life proposed in that hello.
        hid_open: Numbers listed in that hello as still in the outbox.
        open: Numbers of older lives that may still be settled.
        spent: The second privacy ledger: highest known count of releases charged by the device.
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
        """Return the highest confirmed life; the next must be larger."""
        return max(self.cur, self.hid_life)


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """Verdict of one number.

    Attributes:
        digest: SHA-256 of the body sent under it.
        code: 0, or the final reason.
        run: Run in which it counts.
        round: Round in which it counts.
    """

    digest: bytes
    code: int
    run: int
    round: int


class Standing(Enum):
    """Status of a number, determined without reading the body."""

    NEW = "new"  # to be checked
    REPEAT = "repeat"  # settled with the same bytes: repeat the receipt
    FORK = "fork"  # settled with other bytes: two processes use one identity
    CLOSED = "closed"  # of a past life, and not listed as open at its end
    UNKNOWN_LIFE = "unknown life"  # never welcomed: a hello is required


def after_hello(
    ledger: Ledger, hello: HelloMessage, digest: bytes, hold: int
) -> tuple[Ledger, bool]:
    """Apply a hello; return the ledger after it, and whether it is accepted (A1).

    A repeated hello changes nothing and is accepted again; a used life is not accepted. For a
    device that lost its store, ``hold`` releases are added to the count, because as many may have
    been sent and not received. A count at its maximum stays there, since it must fit a message.

    Raises:
        Refused: MALFORMED: a life or a count is further ahead than any device can reach.

    Example:
        >>> fresh = HelloMessage(1, bytes(16), 0, True, (), (1, 1), (), "1", 1)
        >>> known, welcome = after_hello(Ledger(), fresh, b"a", hold=2)
        >>> welcome, after_hello(known, fresh, b"a", hold=2)[0] == known
        (True, True)
        >>> after_hello(known, fresh, b"other nonce", hold=2)[1]
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
    """Return the ledger after a numbered message of a life, which adopts that life (A2).

    A number listed in the hello stays open if it was open before, or belongs to a life that was
    still in use: a settled and pruned number is never opened again.
    """
    if life != ledger.hid_life or life <= ledger.cur:
        return ledger
    still = tuple(k for k in ledger.hid_open if k in ledger.open or k[0] >= ledger.cur)
    return replace(ledger, cur=life, open=still)


def standing(ledger: Ledger, key: Key, digest: bytes, row: LedgerRow | None) -> Standing:
    """Return the status of a number (A3); ``ledger`` is the one after ``used``."""
    if row is not None:
        return Standing.REPEAT if row.digest == digest else Standing.FORK
    if key[0] > ledger.hid_life:
        return Standing.UNKNOWN_LIFE
    if key[0] < ledger.cur and key not in ledger.open:
        return Standing.CLOSED
    return Standing.NEW


def charged(ledger: Ledger, spent: int) -> Ledger:
    """Return the ledger after a stated count of releases, refused ones included (A5).

    Raises:
        Refused: MALFORMED: the count is further ahead than any device can reach.
    """
    check_leap("spent", spent, ledger.spent, RELEASES_LEAP)
    return replace(ledger, spent=max(ledger.spent, spent))


def check_leap(name: str, stated: int, known: int, most: int) -> None:
    """Refuse a device's counter that is more than ``most`` ahead of the known value.

    Raises:
        Refused: MALFORMED.

    Example:
        >>> check_leap("life", 1_000_000, known=0, most=2**20)
        >>> check_leap("life", 2**40, known=5, most=2**20)
        Traceback (most recent call last):
        edge_sdk.wire.errors.Refused: MALFORMED: life 1099511627776 is more than 1048576 above 5
    """
    if stated > known + most:
        raise Refused(Reason.MALFORMED, f"{name} {stated} is more than {most} above {known}")


def renewed(before: Ledger, *, life: int, cmd: int, spent: int = 0) -> Ledger:
    """Return the initial ledger of a device under a new key.

    The count of releases starts again. Lives and command numbers continue, so that no number is
    used twice, except values that no device can have reached.

    Args:
        before: The ledger under the old key.
        life: Highest life in the journal that a device can have reached.
        cmd: Highest usable command number that was issued.
        spent: Initial count of releases.

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
    """Return a ledger whose numbers all fit a message, and the names of those that did not.

    A number that is too large becomes the largest valid one: such a count of releases permits no
    more, and no life or command gets a number below a used one. A new key starts a new ledger.

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
