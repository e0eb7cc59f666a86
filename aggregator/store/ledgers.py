"""Store the devices' ledgers, and decide which standing a number has in one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from aggregator.store.dialect import upsert
from aggregator.store.transactions import Table
from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol import messages

Key = tuple[int, int]  # ``(life, seq)``: the number of one release


@dataclass(frozen=True, slots=True)
class Ledger:
    """Saved numbers of one device."""

    cur: int = 0  # highest life seen in use
    hid: bytes = b""  # digest of the last accepted hello; empty before the first
    hid_life: int = 0  # life proposed in that hello
    hid_open: tuple[Key, ...] = ()  # numbers listed in that hello as still in the outbox
    open: tuple[Key, ...] = ()  # numbers of older lives that may still be settled
    # the second privacy ledger: highest known count of releases charged by the device
    spent: int = 0
    cmd: int = 0  # highest command number issued

    @property
    def top(self) -> int:
        """Return the highest confirmed life; the next must be larger."""
        return max(self.cur, self.hid_life)


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """Verdict of one number."""

    digest: bytes  # SHA-256 of the body sent under it
    code: int  # 0, or the final reason
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
    ledger: Ledger, hello: messages.HelloMessage, digest: bytes, hold: int
) -> tuple[Ledger, bool]:
    """Apply a hello; return the ledger after it, and whether it is accepted (A1).

    A repeated hello changes nothing and is accepted again; a used life is not accepted. For a
    device that lost its store, ``hold`` releases are added to the count, because as many may have
    been sent and not received. A count at its maximum stays there, since it must fit a message.

    Raises:
        Refused: MALFORMED: a life or a count is further ahead than any device can reach.

    >>> fresh = messages.HelloMessage(1, bytes(16), 0, True, (), (1, 1), (), "1", 1)
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
    check_leap("life", hello.life, ledger.top, messages.LIFE_LEAP)
    check_leap("spent", hello.spent, ledger.spent, messages.RELEASES_LEAP)
    unseen = hold if hello.lost and ledger.top else 0
    after = replace(
        ledger,
        hid=digest,
        hid_life=hello.life,
        hid_open=hello.open,
        spent=min(messages.RELEASES_LIMIT, max(ledger.spent, hello.spent) + unseen),
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
    """Return the status of a number (A3); ``ledger`` is the ledger after ``used``."""
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
    check_leap("spent", spent, ledger.spent, messages.RELEASES_LEAP)
    return replace(ledger, spent=max(ledger.spent, spent))


def check_leap(name: str, stated: int, known: int, most: int) -> None:
    """Refuse a device's counter that is more than ``most`` ahead of the known value.

    Raises:
        Refused: MALFORMED.

    >>> check_leap("life", 1_000_000, known=0, most=2**20)
    >>> check_leap("life", 2**40, known=5, most=2**20)
    Traceback (most recent call last):
    edge_sdk.errors.Refused: MALFORMED: life 1099511627776 is more than 1048576 above 5
    """
    if stated > known + most:
        raise Refused(Reason.MALFORMED, f"{name} {stated} is more than {most} above {known}")


def renewed(before: Ledger, *, life: int, cmd: int, spent: int = 0) -> Ledger:
    """Return the initial ledger of a device under a new key.

    The count of releases starts again. Lives and command numbers continue, so that no number is
    used twice, except values that no device can have reached.

    Args:
        life: Highest life in the journal that a device can have reached.
        cmd: Highest usable command number that was issued.

    >>> renewed(Ledger(cur=3, hid_life=4, spent=20, cmd=2), life=3, cmd=2)
    Ledger(cur=3, hid=b'', hid_life=4, hid_open=(), open=(), spent=0, cmd=2)
    >>> renewed(Ledger(cur=2**40, hid_life=2**40), life=3, cmd=0).cur
    3
    """
    cmd = before.cmd if before.cmd <= messages.LARGEST // 2 else cmd
    if before.top <= messages.LIFE_LEAP:
        return replace(before, cmd=cmd, spent=spent)
    return Ledger(cur=life, cmd=cmd, spent=spent)


def usable(found: Ledger) -> tuple[Ledger, tuple[str, ...]]:
    """Return a ledger whose numbers all fit a message, and the names of those that did not.

    A number that is too large becomes the largest valid one: such a count of releases permits no
    more, and no life or command gets a number below a used one. A new key starts a new ledger.

    >>> usable(Ledger(cur=3, spent=2**63 - 1))[1]
    ('spent',)
    """
    most = {
        "cur": messages.LARGEST,
        "hid_life": messages.LARGEST,
        "spent": messages.RELEASES_LIMIT,
        "cmd": messages.LARGEST,
    }
    wrong = {
        name: bound if getattr(found, name) > bound else 0
        for name, bound in most.items()
        if not 0 <= getattr(found, name) <= bound
    }
    return replace(found, **wrong), tuple(wrong)  # type: ignore[arg-type]


class Ledgers(Table):
    """Sequence ledgers of devices, and a row for every settled number."""

    def get(self, device: str) -> Ledger:
        """Return a device's ledger: empty for a new device; an unusable number becomes the largest."""
        return usable(self._stored(device))[0]

    def unusable(self) -> dict[str, tuple[str, ...]]:
        """Return, by device, the names of stored numbers that do not fit a message."""
        devices = [
            name for (name,) in self._db.execute("SELECT device FROM ledgers ORDER BY device")
        ]
        found = {device: usable(self._stored(device))[1] for device in devices}
        return {device: names for device, names in found.items() if names}

    def renew(self, device: str, spent: int = 0) -> Ledger:
        """Start a new ledger for a device's new key; return the previous one.

        Rows of lives that no device can have reached are deleted; the others still detect repeats.

        >>> from aggregator.store.sqlite import in_memory
        >>> ledgers = in_memory().ledgers
        >>> ledgers.save("meter-1", Ledger(cur=2**63 - 1, hid_life=2**63 - 1, spent=2**63 - 1, cmd=3))
        >>> _ = ledgers.renew("meter-1")
        >>> ledgers.get("meter-1")
        Ledger(cur=0, hid=b'', hid_life=0, hid_open=(), open=(), spent=0, cmd=3)
        """
        with self._writing() as db:
            before = self.get(device)
            (life,) = db.execute(
                "SELECT coalesce(max(life), 0) FROM journal"
                " WHERE kind = 'update' AND device = ? AND life <= ?",
                (device, messages.LIFE_LEAP),
            ).fetchone()
            (num,) = db.execute(
                "SELECT coalesce(max(num), 0) FROM commands WHERE device = ? AND num <= ?",
                (device, messages.LARGEST // 2),
            ).fetchone()
            after = renewed(before, life=life, cmd=num, spent=spent)
            self.save(device, after)
            db.execute("DELETE FROM rows WHERE device = ? AND life > ?", (device, after.top))
            return before

    def _stored(self, device: str) -> Ledger:
        found = self._db.execute(
            "SELECT cur, hid, hid_life, hid_open, open, spent, cmd FROM ledgers WHERE device = ?",
            (device,),
        ).fetchone()
        if found is None:
            return Ledger()
        cur, hid, life, listed, still, spent, cmd = found
        return Ledger(cur, hid, life, _keys(listed), _keys(still), spent, cmd)

    def save(self, device: str, ledger: Ledger) -> None:
        """Save a device's ledger; prune the rows that the end of a life closes.

        >>> from aggregator.store.sqlite import in_memory
        >>> ledgers = in_memory().ledgers
        >>> ledgers.save("meter-1", Ledger(cur=1))
        >>> for seq in (1, 2, 3):
        ...     ledgers.settle("meter-1", (1, seq), LedgerRow(bytes(32), 0, 1, seq))
        >>> ledgers.save("meter-1", Ledger(cur=2, open=((1, 3),)))
        >>> [ledgers.row("meter-1", (1, seq)) is None for seq in (1, 2, 3)]
        [True, True, False]
        """
        with self._writing() as db:
            before = db.execute("SELECT cur FROM ledgers WHERE device = ?", (device,)).fetchone()
            db.execute(
                upsert("ledgers", "device", "cur, hid, hid_life, hid_open, open, spent, cmd"),
                (device, *_columns(ledger)),
            )
            if before is not None and before[0] != ledger.cur:
                self._prune(device, ledger)

    def raise_commands(self, devices: Iterable[str], by: int) -> None:
        """Increase the highest command number of devices; create missing ledgers."""
        with self._writing() as db:
            db.executemany(
                "INSERT INTO ledgers (device, cur, hid, hid_life, hid_open, open, spent, cmd)"
                " VALUES (?, 0, ?, 0, '[]', '[]', 0, ?) ON CONFLICT (device) DO UPDATE SET"
                " cmd = CASE WHEN ledgers.cmd > ? THEN ? ELSE ledgers.cmd END + excluded.cmd",
                [
                    (device, b"", by, messages.LARGEST - by, messages.LARGEST - by)
                    for device in devices
                ],
            )

    def settle(self, device: str, key: Key, row: LedgerRow) -> None:
        """Store the verdict of a number; the database refuses a second one."""
        with self._writing() as db:
            db.execute(
                "INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?, ?)",
                (device, *key, row.digest, row.code, row.run, row.round),
            )

    def unsettle(self, device: str, key: Key) -> None:
        with self._writing() as db:
            db.execute("DELETE FROM rows WHERE device = ? AND life = ? AND seq = ?", (device, *key))

    def row(self, device: str, key: Key) -> LedgerRow | None:
        """Return the verdict of a number, or None."""
        found = self._db.execute(
            "SELECT digest, code, run, round FROM rows WHERE device = ? AND life = ? AND seq = ?",
            (device, *key),
        ).fetchone()
        return None if found is None else LedgerRow(*found)

    def held(self, device: str) -> int:
        return int(
            self._db.execute("SELECT count(*) FROM rows WHERE device = ?", (device,)).fetchone()[0]
        )

    def settled(self) -> dict[tuple[str, int, int], LedgerRow]:
        found = self._db.execute("SELECT device, life, seq, digest, code, run, round FROM rows")
        return {(device, life, seq): LedgerRow(*rest) for device, life, seq, *rest in found}

    def _prune(self, device: str, ledger: Ledger) -> None:
        for life, seq in self._db.execute(
            "SELECT life, seq FROM rows WHERE device = ?", (device,)
        ).fetchall():
            if (life, seq) not in ledger.open and life < ledger.cur:
                self._db.execute(
                    "DELETE FROM rows WHERE device = ? AND life = ? AND seq = ?",
                    (device, life, seq),
                )


def _columns(ledger: Ledger) -> tuple[object, ...]:
    return (
        ledger.cur,
        ledger.hid,
        ledger.hid_life,
        json.dumps(ledger.hid_open),
        json.dumps(ledger.open),
        ledger.spent,
        ledger.cmd,
    )


def _keys(text: str) -> tuple[Key, ...]:
    return tuple((life, seq) for life, seq in json.loads(text))
