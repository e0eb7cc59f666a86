"""Open sets as a witness: check them against its own copy of the devices' keys, and remember what it opened.

The record is one SQLite file. A set is saved in it before its answer is given away, so that after any
restart no device is in two sets of one contract and period. The same set again has the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from aggregator.extensions.sums.sum_set import SumAnswer, SumSet, file_digest, read_set
from edge_sdk.app import sqlite_file
from edge_sdk.app.permissions import make_private_folder
from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.sums.masked_sum import Integers, SumContext, added
from edge_sdk.extensions.sums.seed import ExchangeKey, SeedError, mask_of
from edge_sdk.protocol.keys import Signer, kid_of, verify

LEAST = 8  # members below which no set is opened by default

_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (digest BLOB PRIMARY KEY, fleet TEXT NOT NULL, name TEXT NOT NULL,
    period INTEGER NOT NULL, value TEXT NOT NULL, members INTEGER NOT NULL, answer BLOB NOT NULL)
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS opened (fleet TEXT NOT NULL, name TEXT NOT NULL, period INTEGER NOT NULL,
    member TEXT NOT NULL, digest BLOB NOT NULL, PRIMARY KEY (fleet, name, period, member)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS devices (fleet TEXT NOT NULL, device TEXT NOT NULL, key BLOB NOT NULL,
    PRIMARY KEY (fleet, device, key)) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class WitnessKeys:
    """The two keys of a witness."""

    sign: Signer  # signs answers
    open: ExchangeKey  # seeds are agreed with it


class WitnessRecord:
    """The sets that a witness has opened, and the keys of the devices as it received them beforehand.

    Args:
        path: File of the record; made if it is missing.
        least: Fewest members of a set.
    """

    def __init__(self, path: Path, least: int = LEAST) -> None:
        make_private_folder(path.parent)
        self._db = sqlite_file.connect(path)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.executescript(_SCHEMA)
        self._least = least

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def enrol(self, fleet: str, keys: Iterable[tuple[str, bytes]]) -> int:
        """Add keys of devices; return how many are new. A former key of a device stays valid.

        Several ids of one device have one key, and one of them may be in a set.
        """
        rows = [(fleet, device, key) for device, key in keys]
        with self._writing():
            before = self._db.total_changes
            insert = "INSERT INTO devices VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
            self._db.executemany(insert, rows)
            return self._db.total_changes - before

    def _keys(self, fleet: str) -> Iterator[tuple[str, bytes]]:
        rows = self._db.execute("SELECT device, key FROM devices WHERE fleet = ?", (fleet,))
        return ((device, bytes(key)) for device, key in rows)

    def open(self, data: bytes, keys: WitnessKeys) -> bytes:
        """Return the answer to a set's file, after it was saved.

        Raises:
            Refused: It is no set, or one that must not be opened. Nothing is saved.
        """
        digest = file_digest(data)
        found = self._db.execute("SELECT answer FROM answers WHERE digest = ?", (digest,))
        if row := found.fetchone():
            return bytes(row[0])
        wanted = read_set(data)
        self._judge(wanted, keys.open.public)
        signers = self._signers(wanted)
        masks = self._masks(wanted, keys.open)
        answer = SumAnswer.signed(digest, len(wanted.members), masks, keys.sign).write()
        self._save(wanted, signers, digest, answer)
        return answer

    def sums(self) -> list[tuple[str, str, int, str, int]]:
        """Return fleet, contract, period, cohort's value and members of each opened set."""
        found = "SELECT fleet, name, period, value, members FROM answers ORDER BY 1, 2, 3, 4"
        return list(self._db.execute(found))

    def _judge(self, wanted: SumSet, public: bytes) -> None:
        terms = wanted.contract.terms
        if terms.witness != public:
            raise Refused(Reason.CANNOT_OPEN, "the contract names another witness")
        least = max(self._least, terms.least)
        if len(wanted.members) < least:
            text = f"{len(wanted.members)} members, at least {least} are needed"
            raise Refused(Reason.NOT_IN_COHORT, text)

    def _signers(self, wanted: SumSet) -> set[bytes]:
        """Verify every member; return the keys that have signed.

        Raises:
            Refused: UNKNOWN_CLIENT or BAD_SIGNATURE, of the first member at fault; FORK for one key of two.
        """
        found: set[bytes] = set()
        known: dict[str, list[bytes]] = {}
        for device, public in self._keys(wanted.fleet):
            known.setdefault(device, []).append(public)
        for one in wanted.members:
            if one.device not in known:
                raise Refused(Reason.UNKNOWN_CLIENT, f"{one.device} is not enrolled here")
            signed = _context(wanted, one.device).signed(one.enc, one.masked)
            keys = known[one.device]
            signer = next((key for key in keys if verify(key, one.proof, signed)), None)
            if signer is None:
                names = ", ".join(kid_of(key).hex() for key in keys)
                raise Refused(Reason.BAD_SIGNATURE, f"{one.device}, keys {names}")
            if signer in found:
                raise Refused(Reason.FORK, f"{one.device}: the key of another member")
            found.add(signer)
        return found

    def _masks(self, wanted: SumSet, key: ExchangeKey) -> Integers:
        """Return the sum of the members' masks; raise Refused, CANNOT_OPEN, if one has none."""
        length = wanted.contract.terms.length
        total = added((), length)
        for one in wanted.members:
            info = _context(wanted, one.device).info()
            try:
                total += mask_of(key.seed(one.enc, info=info), length)
            except SeedError as error:
                raise Refused(Reason.CANNOT_OPEN, f"{one.device}: {error}") from error
        return total

    def _save(self, wanted: SumSet, signers: set[bytes], digest: bytes, answer: bytes) -> None:
        """Save a set and its answer in one transaction.

        Raises:
            Refused: TWICE_IN_ROUND: a member, or its key, is in another set of this contract and period.
        """
        of = (wanted.fleet, wanted.contract.terms.name, wanted.period)
        members = {one.device for one in wanted.members} | {key.hex() for key in signers}
        with self._writing():
            rows = self._db.execute(
                "SELECT member FROM opened WHERE fleet = ? AND name = ? AND period = ?", of
            )
            if both := {row[0] for row in rows} & members:
                text = "it is in another set of this period, which was opened"
                raise Refused(Reason.TWICE_IN_ROUND, f"{min(both)}: {text}")
            self._db.executemany(
                "INSERT INTO opened VALUES (?, ?, ?, ?, ?)",
                [(*of, member, digest) for member in sorted(members)],
            )
            row = (digest, *of, wanted.value, len(wanted.members), answer)
            self._db.execute("INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Run one transaction, which is on disk when it ends; an error undoes it."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")


def _context(wanted: SumSet, device: str) -> SumContext:
    return SumContext(wanted.fleet, device, wanted.contract.digest, wanted.period)
