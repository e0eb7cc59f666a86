"""Write the audit log as JSON lines, and verify such an export from the file and public keys alone.

The first line has the fleet, the number of records and the digest of the last one, signed by the
aggregator. Each further line is one record. Format: docs/audit-log.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from aggregator.store.audit_record import DIGEST_SIZE, FIRST, AuditRecord, canonical
from aggregator.store.store import Store
from edge_sdk.protocol.keys import KID_SIZE, SIGNATURE_SIZE, Signer, kid_of, verify

FORMAT = "gridfed-audit-log/1"
LINE_LIMIT = 32_768  # most characters of a line
FAULTS_LIMIT = 1000  # number of faults after which the verification ends
# fault of a record
FaultKind = Literal[
    "malformed", "changed", "missing", "moved", "unlinked", "truncated", "rewritten"
]

_HEADER = {
    "format": str, "fleet": str, "records": int, "time": int, "head": str, "signer": str, "signature": str,
}  # fmt: skip
_RECORD: dict[str, type] = {
    "number": int, "time": int, "via": str, "actor": str, "act": str, "subject": str, "reason": str,
    "detail": str, "order": str, "previous": str, "signer": str, "signature": str,
}  # fmt: skip
_SIZES = {
    "previous": DIGEST_SIZE,
    "head": DIGEST_SIZE,
    "signer": KID_SIZE,
    "signature": SIGNATURE_SIZE,
}


class ExportLineError(ValueError):
    """A malformed line of an export; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the log."""

    kind: FaultKind
    number: int  # number of the record; 0 for the first line of an export
    text: str  # sentence for the operator


@dataclass(frozen=True, slots=True)
class Head:
    """The last record of a log as it was saved somewhere else."""

    number: int  # number of the record; 0 for an empty log
    digest: bytes  # digest of the record (32 bytes)


@dataclass(slots=True)
class Verification:
    """Compares records with each other, and with heads that were saved.

    Args:
        public: Public keys of the aggregator, the former ones too.
        heads: Heads that the log must contain.

    >>> from edge_sdk.protocol.keys import SigningKey
    >>> from aggregator.store.audit_record import signed
    >>> key = SigningKey.from_seed(bytes(32))
    >>> record = signed(AuditRecord(1, 0, "command", "anna", "revoke", "meter-1"), "north", key)
    >>> found = Verification("north", [key.public])
    >>> found.add(record)
    >>> found.close(), found.head.number
    ([], 1)
    """

    fleet: str
    public: Sequence[bytes]
    heads: Sequence[Head] = ()
    faults: list[Fault] = field(default_factory=list)
    head: Head = Head(0, FIRST)
    _is_linked: bool = True
    _seen: dict[int, bytes] = field(default_factory=dict)

    def add(self, record: AuditRecord) -> None:
        """Verify the next record."""
        number, expected = record.number, self.head.number + 1
        digest = record.digest(self.fleet)
        if number < expected:
            self._note("moved", number, f"record {number} stands after record {self.head.number}")
            return
        if number > expected:
            which = (
                f"record {expected}"
                if number == expected + 1
                else f"records {expected} to {number - 1}"
            )
            self._note("missing", expected, f"{which} missing before record {number}")
        elif self._is_linked and record.previous != self.head.digest:
            text = f"record {number} does not follow record {number - 1} as it stands here"
            self._note("unlinked", number, text)
        is_signed = self._verify(record)
        self._is_linked = is_signed  # the next one follows this one as it was
        self.head = Head(number, digest)
        self._seen.update({one.number: digest for one in self.heads if one.number == number})

    def close(self, stated: int | None = None) -> list[Fault]:
        """Compare the end of the log with the heads and the stated number of records; return all faults."""
        last = self.head.number
        most = max((one.number for one in self.heads), default=0)
        if stated is not None and stated < last:
            self._note("rewritten", last, f"{last} records, and the first line states {stated}")
        if max(stated or 0, most) > last:
            end = max(stated or 0, most)
            self._note("truncated", last + 1, f"records {last + 1} to {end} are missing at the end")
        for one in self.heads:
            if 0 < one.number <= last and self._seen.get(one.number) != one.digest:
                text = f"record {one.number} is another one than the saved head has"
                self._note("rewritten", one.number, text)
        return self.faults

    def _verify(self, record: AuditRecord) -> bool:
        known = [one for one in self.public if kid_of(one) == record.signer]
        if not known:
            text = (
                f"record {record.number} is signed by key {record.signer.hex()}, which is not given"
            )
            self._note("changed", record.number, text)
            return False
        is_signed = verify(known[0], record.signature, record.statement(self.fleet))
        if not is_signed:
            text = f"record {record.number} was changed: its signature does not match"
            self._note("changed", record.number, text)
        return is_signed

    def _note(self, kind: FaultKind, number: int, text: str) -> None:
        if len(self.faults) < FAULTS_LIMIT:
            self.faults.append(Fault(kind, number, text))


def export_lines(store: Store, fleet: str, signer: Signer, now: int) -> Iterator[str]:
    """Return the lines of an export, without line ends.

    Args:
        signer: The aggregator's key, which signs the first line.
        now: Time of the export, Unix milliseconds.
    """
    last = store.audit_log.last()
    count = 0 if last is None else last.number
    head = FIRST if last is None else last.digest(fleet)
    first = {
        "format": FORMAT, "fleet": fleet, "records": count, "time": now, "head": head.hex(),
        "signer": kid_of(signer.public).hex(),
    }  # fmt: skip
    yield canonical({**first, "signature": signer.sign(_stated(first)).hex()})
    for record in store.audit_log.records():
        if record.number <= count:
            yield canonical(record.fields())


def verified(
    lines: Iterable[str], public: Sequence[bytes], heads: Sequence[Head] = ()
) -> Verification:
    """Verify an export; the faults are in the result.

    Args:
        public: Public keys of the aggregator, the former ones too.
        heads: Heads that were saved earlier, which the log must contain.
    """
    rows = enumerate(lines)
    try:
        header = _fields(next(rows, (0, ""))[1], _HEADER)
    except ExportLineError as error:
        found = Verification("", public, heads)
        found.faults.append(Fault("malformed", 0, f"line 1: {error}"))
        return found
    found = Verification(header["fleet"], public, heads)
    signature = bytes.fromhex(header.pop("signature"))
    known = [one for one in public if kid_of(one).hex() == header["signer"]]
    if header["format"] != FORMAT:
        found.faults.append(Fault("malformed", 0, f"line 1: expected the format {FORMAT}"))
    if not known or not verify(known[0], signature, _stated(header)):
        text = "the first line was changed, or is signed by a key that is not given"
        found.faults.append(Fault("changed", 0, text))
    for number, line in rows:
        try:
            found.add(read_record(line))
        except ExportLineError as error:
            found.faults.append(
                Fault("malformed", found.head.number + 1, f"line {number + 1}: {error}")
            )
            break
        if len(found.faults) >= FAULTS_LIMIT:
            break
    stated = int(header["records"])
    if (
        found.head.number == stated
        and found.head.digest.hex() != header["head"]
        and not found.faults
    ):
        text = f"record {stated} is another one than the first line states"
        found.faults.append(Fault("rewritten", stated, text))
    found.close(stated)
    return found


def read_record(line: str) -> AuditRecord:
    """Return the record in a line."""
    found = _fields(line, _RECORD)
    for name in ("previous", "signer", "signature"):
        found[name] = bytes.fromhex(found[name])
    return AuditRecord(**found)


def read_head(lines: Sequence[str]) -> tuple[str, Head, dict[str, Any]]:
    """Return the fleet, the head and the fields of the first line of an export, or of that line alone."""
    header = _fields(lines[0] if lines else "", _HEADER)
    return header["fleet"], Head(header["records"], bytes.fromhex(header["head"])), header


def is_signed_head(header: dict[str, Any], public: Sequence[bytes]) -> bool:
    """Return whether one of the keys has signed the first line of an export."""
    stated = {name: value for name, value in header.items() if name != "signature"}
    signature = bytes.fromhex(header["signature"])
    return any(
        kid_of(one).hex() == header["signer"] and verify(one, signature, _stated(stated))
        for one in public
    )


def _stated(header: dict[str, Any]) -> bytes:
    return f"gridfed audit log/1\n{canonical(header)}".encode()


def _fields(line: str, wanted: dict[str, type]) -> dict[str, Any]:
    """Return the object in a line, which has exactly the wanted fields, in the form that is written."""
    try:
        found = json.loads(line) if len(line) <= LINE_LIMIT else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or set(found) != set(wanted):
        raise ExportLineError(f"expected {', '.join(sorted(wanted))}")
    for name, kind in wanted.items():
        value = found[name]
        if type(value) is not kind or (isinstance(value, int) and not 0 <= value < 2**63):
            raise ExportLineError(f"{name} is no {kind.__name__} in bounds")
        if name in _SIZES and not _is_hex(str(value), _SIZES[name]):
            raise ExportLineError(f"{name}: expected {2 * _SIZES[name]} hex digits")
    return found


def _is_hex(text: str, size: int) -> bool:
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        return False
    return len(raw) == size and raw.hex() == text
