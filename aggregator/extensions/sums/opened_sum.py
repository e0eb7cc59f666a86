"""Store contracts, masked vectors, sets and opened sums; read the sums of a cohort.

from aggregator.extensions.sums.opened_sum import SumTable
from aggregator.store.opener import open_store

with open_store(config.database, read_only=True) as store:
    sums = store.table(SumTable).opened("feeder-history", "F12")
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from aggregator.config import AggregatorConfig
from aggregator.extensions.sums.sum_set import SumSet, file_digest, read_set
from aggregator.store.dialect import has_table
from aggregator.store.opener import exists, open_store
from aggregator.store.transactions import Table
from edge_sdk.extensions.sums.masked_sum import (
    FollowedContract,
    Integers,
    packed,
    unpacked,
    values_of,
)
from edge_sdk.extensions.sums.messages import SumMessage


@dataclass(frozen=True, slots=True)
class StoredSum:
    """The sum of one cohort and one period, of the devices that took part."""

    contract: str  # name of the contract
    source: str  # ``history`` or ``tomorrow``
    value: str  # of the cohort's label; empty if all devices are one cohort
    period: int  # begin, Unix milliseconds
    step: int  # milliseconds of one number
    members: int  # devices in the sum
    expected: int  # devices that had the label when the set was made, members included
    values: NDArray[np.float64]  # sum of the members, in ``unit``, shape ``(length,)``
    unit: str
    opened: int  # when it was opened, Unix milliseconds
    # part of the cohort's devices that are in the sum, by the numbers of a label; None: unknown
    part: float | None = None
    noise: float = 0.0  # standard deviation of the noise in each number


@dataclass(frozen=True, slots=True)
class WaitingSet:
    """A set with its file."""

    data: bytes  # the file for the witness
    of: SumSet

    @property
    def name(self) -> str:
        """Return the name of its file: contract, period, the cohort's value, begin of its digest."""
        found = self.of
        begin = datetime.fromtimestamp(found.period / 1000, UTC).strftime("%Y%m%dT%H%M")
        value = f"-{found.value}" if found.value else ""
        return f"{found.contract.terms.name}-{begin}{value}-{file_digest(self.data).hex()[:8]}"


def opened_sums(config: AggregatorConfig, since: int = 0, label: str = "") -> list[StoredSum]:
    """Return the opened sums of a fleet, read beside a running daemon; none before its first start.

    Args:
        since: Unix milliseconds before which no returned period begins.
        label: Label whose value is a number above 0, such as the rated power, by which ``part`` is
            computed from the present labels; empty: it is unknown.
    """
    if not exists(config.database):
        return []
    with open_store(config.database, read_only=True) as store:
        table = store.table(SumTable)
        found = table.opened(since=since)
        if not label:
            return found
        devices = {
            one.id: dict(one.labels) for one in store.devices.all() if one.state != "revoked"
        }
        has_label = any(label in labels for labels in devices.values())
        return list(_with_parts(found, table, devices, label)) if has_label else found


def _with_parts(
    found: Iterable[StoredSum],
    table: SumTable,
    devices: Mapping[str, Mapping[str, str]],
    label: str,
) -> Iterator[StoredSum]:
    sizes = {device: _number(labels.get(label, "")) for device, labels in devices.items()}
    cohorts = {one.terms.name: one.terms.cohort for one in table.contracts()}
    for one in found:
        of = cohorts[one.contract]
        cohort = [x for x, labels in devices.items() if not of or labels.get(of) == one.value]
        members = table.members(one.contract, one.period, one.value)
        everybody = {*cohort, *members}
        if all(sizes.get(device, 0.0) > 0.0 for device in everybody):
            total = sum(sizes[device] for device in everybody)
            one = replace(one, part=sum(sizes[device] for device in members) / total)  # noqa: PLW2901
        yield one


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0


class SumTable(Table):
    """Contracts, masked vectors, sets and opened sums."""

    def opened(
        self, contract: str | None = None, value: str | None = None, since: int = 0
    ) -> list[StoredSum]:
        """Return opened sums, by contract, cohort and period.

        Args:
            contract: Name of the contract; None for any.
            value: Value of the cohort's label; None for any.
            since: Unix milliseconds before which no returned period begins.
        """
        if not has_table(self._db, "sum_opened"):
            return []
        rows = self._db.execute(
            "SELECT s.name, s.value, s.period, o.members, s.expected, o.total, o.time, c.body"
            " FROM sum_opened o JOIN sum_sets s ON s.digest = o.digest"
            " JOIN sum_contracts c ON c.digest = s.contract WHERE s.period >= ?"
            " ORDER BY s.name, s.value, s.period, o.time",
            (since,),
        )
        found = []
        for name, of, period, members, expected, total, time, body in rows:
            if contract not in (None, name) or value not in (None, of):
                continue
            terms = FollowedContract.read(bytes(body)).terms
            values = values_of(unpacked(bytes(total), terms.length), members, terms)
            about = (name, terms.source, of, period, terms.step, members, expected)
            noise = terms.Noise * math.sqrt(members / (0.9 * terms.least))
            found.append(StoredSum(*about, values, terms.unit, time, noise=noise))
        return found

    def members(self, contract: str, period: int, value: str) -> list[str]:
        """Return the devices of a set, by the contract's name."""
        row = self._db.execute(
            "SELECT data FROM sum_sets WHERE name = ? AND period = ? AND value = ?",
            (contract, period, value),
        ).fetchone()
        return [] if row is None else [one.device for one in read_set(bytes(row[0])).members]

    # --- contracts --------------------------------------------------------------------------------

    def add_contract(self, contract: FollowedContract, body: bytes) -> None:
        """Keep a contract for ever; one that is known is not written again."""
        with self._writing() as db:
            db.execute(
                "INSERT INTO sum_contracts VALUES (?, ?) ON CONFLICT DO NOTHING",
                (contract.digest, body),
            )

    def contracts(self) -> list[FollowedContract]:
        """Return every contract that was announced."""
        rows = self._db.execute("SELECT body FROM sum_contracts ORDER BY digest")
        return [FollowedContract.read(bytes(row[0])) for row in rows]

    def body(self, contract: FollowedContract) -> bytes:
        """Return the bytes of a contract that is kept."""
        found = "SELECT body FROM sum_contracts WHERE digest = ?"
        return bytes(self._db.execute(found, (contract.digest,)).fetchone()[0])

    # --- masked vectors ---------------------------------------------------------------------------

    def message(self, contract: FollowedContract, device: str, period: int) -> SumMessage | None:
        """Return a device's message of a period; None if there is none."""
        row = self._db.execute(
            "SELECT enc, proof, masked FROM sum_messages"
            " WHERE contract = ? AND period = ? AND device = ?",
            (contract.digest, period, device),
        ).fetchone()
        return None if row is None else _message(contract, period, *row)

    def add_message(
        self, contract: FollowedContract, device: str, sent: SumMessage, time: int
    ) -> None:
        """Store a device's masked numbers; a second message of a period is an error of the caller."""
        with self._writing() as db:
            row = (contract.digest, sent.period, device, sent.enc, sent.proof, sent.blob, time)
            db.execute(
                "INSERT INTO sum_messages (contract, period, device, enc, proof, masked, time)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                row,
            )

    def periods(self, contract: FollowedContract) -> list[int]:
        """Return the periods of a contract with messages and without sets, oldest first."""
        rows = self._db.execute(
            "SELECT DISTINCT period FROM sum_messages m WHERE contract = ? AND NOT EXISTS"
            " (SELECT 1 FROM sum_sets s WHERE s.name = ? AND s.period = m.period) ORDER BY period",
            (contract.digest, contract.terms.name),
        )
        return [int(row[0]) for row in rows]

    def kept_periods(self, contract: FollowedContract) -> set[int]:
        """Return the periods of which any masked vector is stored."""
        found = "SELECT DISTINCT period FROM sum_messages WHERE contract = ?"
        return {int(row[0]) for row in self._db.execute(found, (contract.digest,))}

    def messages(self, contract: FollowedContract, period: int) -> Iterator[tuple[str, SumMessage]]:
        """Return the messages of a period, by device."""
        rows = self._db.execute(
            "SELECT device, enc, proof, masked FROM sum_messages"
            " WHERE contract = ? AND period = ? ORDER BY device",
            (contract.digest, period),
        )
        return ((row[0], _message(contract, period, *row[1:])) for row in rows)

    def drop_messages(self, before: int) -> None:
        """Delete masked vectors of periods that begin before a time, Unix milliseconds."""
        with self._writing() as db:
            db.execute("DELETE FROM sum_messages WHERE period < ?", (before,))

    # --- sets and answers -------------------------------------------------------------------------

    def add_sets(self, sets: Iterable[tuple[SumSet, int]], time: int) -> None:
        """Store sets, each with the number of devices that have its label."""
        with self._writing() as db:
            for one, expected in sets:
                data, name = one.write(), one.contract.terms.name
                row = (file_digest(data), one.contract.digest, name, one.period, one.value)
                db.execute(
                    "INSERT INTO sum_sets (digest, contract, name, period, value, expected, data, time)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (*row, expected, data, time),
                )

    def waiting(self, since: int = 0) -> list[WaitingSet]:
        """Return the sets without an answer that have enough members, oldest first.

        Args:
            since: Unix milliseconds before which no period of theirs begins.
        """
        rows = self._db.execute(
            "SELECT data FROM sum_sets s WHERE NOT EXISTS"
            " (SELECT 1 FROM sum_opened o WHERE o.digest = s.digest) AND period >= ?"
            " ORDER BY period, name, value",
            (since,),
        )
        found = (WaitingSet(bytes(row[0]), read_set(bytes(row[0]))) for row in rows.fetchall())
        return [one for one in found if is_large_enough(one.of)]

    def find_set(self, digest: bytes) -> SumSet | None:
        """Return a set by its digest; None if there is none."""
        row = self._db.execute("SELECT data FROM sum_sets WHERE digest = ?", (digest,)).fetchone()
        return None if row is None else read_set(bytes(row[0]))

    def add_opened(
        self, digest: bytes, members: int, total: Integers, answer: bytes, time: int
    ) -> bool:
        """Store an opened sum with the answer's file; return False if it was opened before."""
        with self._writing() as db:
            known = db.execute("SELECT 1 FROM sum_opened WHERE digest = ?", (digest,)).fetchone()
            if known is None:
                db.execute(
                    "INSERT INTO sum_opened (digest, members, total, answer, time)"
                    " VALUES (?, ?, ?, ?, ?)",
                    (digest, members, packed(total), answer, time),
                )
            return known is None

    def answers(self) -> list[tuple[bytes, bytes, bytes]]:
        """Return the set's digest, the stored total and the answer's file of each opened sum."""
        if not has_table(self._db, "sum_opened"):
            return []
        rows = self._db.execute(
            "SELECT digest, total, answer FROM sum_opened ORDER BY time, digest"
        )
        return [(bytes(a), bytes(b), bytes(c)) for a, b, c in rows]


def is_large_enough(found: SumSet) -> bool:
    """Return whether a set has the members that its contract demands."""
    return len(found.members) >= found.contract.terms.least


def _message(
    contract: FollowedContract, period: int, enc: bytes, proof: bytes, masked: bytes
) -> SumMessage:
    return SumMessage(contract.ref, period, bytes(enc), bytes(proof), bytes(masked))
