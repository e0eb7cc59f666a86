"""Record an authority's lists, certificates, enrolments and refusals, in one SQLite file in its folder.

Everything that one enrolment changes is one transaction: the password is used, the certificate is
in the record, and the device is a member whose enrolment the aggregator has yet to receive.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import ClassVar, Final

from aggregator.extensions.authority.record_entries import (
    ACTS_TABLE,
    AuthorityAct,
    IssuedCertificate,
    newest,
)
from edge_sdk.app import sqlite_file
from edge_sdk.errors import RUNTIME, Failure

FILE, FORMER = "authority.sqlite", "issued.jsonl"

_FORMAT = sqlite_file.FileFormat(
    application=0x67666361,
    schema=4,
    tables=f"""
    CREATE TABLE certificates (
        position INTEGER PRIMARY KEY, serial TEXT NOT NULL UNIQUE, name TEXT NOT NULL,
        role TEXT NOT NULL, issued TEXT NOT NULL, expires TEXT NOT NULL,
        revoked TEXT NOT NULL DEFAULT '', key_digest TEXT NOT NULL DEFAULT '', der BLOB,
        issuer TEXT NOT NULL DEFAULT '');
    CREATE INDEX certificates_name ON certificates (name);
    CREATE TABLE listed (
        serial TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, labels TEXT NOT NULL,
        salt BLOB NOT NULL, digest BLOB NOT NULL, claim TEXT NOT NULL DEFAULT '',
        until TEXT NOT NULL, used TEXT NOT NULL DEFAULT '', used_key TEXT NOT NULL DEFAULT '');
    CREATE INDEX listed_claim ON listed (claim);
    CREATE TABLE members (
        name TEXT PRIMARY KEY, identity BLOB UNIQUE, labels TEXT NOT NULL, state TEXT NOT NULL,
        since TEXT NOT NULL, is_delivered INTEGER NOT NULL, pending TEXT NOT NULL DEFAULT '',
        approved TEXT NOT NULL DEFAULT '', former BLOB);
    CREATE TABLE refusals (
        reason TEXT PRIMARY KEY, count INTEGER NOT NULL, last TEXT NOT NULL, about TEXT NOT NULL);
    {ACTS_TABLE}""",
)


class RecordError(Failure):
    """The record of issued certificates is damaged, or of another program or release."""

    exit_code: ClassVar[int] = RUNTIME


@dataclass(frozen=True, slots=True)
class ListedSerial:
    """A device that may enrol once."""

    serial: str  # serial number of the device, the user name of HTTP Basic
    name: str  # common name of its certificate
    labels: str  # labels with which it is enrolled, ``name=value`` between commas
    salt: bytes
    digest: bytes  # salted digest of its password
    until: str  # time at which the password expires, ISO 8601 in UTC
    used: str = ""  # time of the enrolment; empty before
    used_key: str = ""  # SHA-256 of the TLS key that was enrolled; empty before


@dataclass(frozen=True, slots=True)
class EnrolledMember:
    """A name that was enrolled over EST."""

    name: str
    # identity key; None for a device of another maker, which has proved none
    identity: bytes | None
    labels: str
    state: str  # ``member`` or ``revoked``
    since: str  # time of its enrolment, ISO 8601 in UTC
    is_delivered: bool  # true once the aggregator has received the enrolment
    # time at which it first asked after its time of grace; empty if it does not wait
    pending: str = ""
    approved: str = ""  # time of the operator's approval; empty without one
    # identity key that the present one replaces, by which it was proved; None without one
    former: bytes | None = None


class Record:
    """The record of one authority.

    Raises:
        RecordError: The file is of another program, of a newer release, or of before the first one.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / FILE
        self._db = sqlite_file.connect(path)
        self.close = self._db.close
        try:
            is_old = sqlite_file.prepare(self._db, _FORMAT) < _FORMAT.schema
        except (sqlite_file.ForeignFileError, sqlite_file.SqliteError) as error:
            self._db.close()
            raise RecordError(
                f"{path}: cannot be used as the record of an authority: {error}"
            ) from error
        except sqlite_file.NewerFileError as error:
            self._db.close()
            raise RecordError(f"{path}: {error} is of a newer release") from error
        except BaseException:
            self._db.close()
            raise
        if is_old or (folder / FORMER).exists():
            self._db.close()
            raise RecordError(
                f"{path if is_old else folder / FORMER}: written before the first release",
                hint="begin another authority: gridfed-aggregator ca init",
            )

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit everything that is written inside, or nothing."""
        with sqlite_file.transaction(self._db):
            yield

    def certificates(self, name: str | None = None) -> list[IssuedCertificate]:
        """Return the issued certificates, oldest first; with a name, only its own."""
        where, values = ("", ()) if name is None else (" WHERE name = ?", (name,))
        rows = self._db.execute(
            f"SELECT serial, name, role, issued, expires, revoked, issuer FROM certificates{where}"  # noqa: S608 - no value in it
            " ORDER BY position",
            values,
        )
        return [IssuedCertificate(*row) for row in rows]

    def add(self, one: IssuedCertificate, key_digest: str = "", der: bytes | None = None) -> None:
        self._db.execute(
            "INSERT INTO certificates (serial, name, role, issued, expires, revoked, key_digest, der,"
            " issuer) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(one.serial, one.name, one.role, one.issued, one.expires, one.revoked),
                *(key_digest, der, one.issuer),
            ),
        )

    def of_key(self, name: str, key_digest: str) -> tuple[IssuedCertificate, bytes] | None:
        """Return the newest certificate of a name for a key, with its DER bytes, if it has one."""
        row = self._db.execute(
            "SELECT serial, name, role, issued, expires, revoked, issuer, der FROM certificates"
            " WHERE name = ? AND key_digest = ? AND der IS NOT NULL ORDER BY position DESC LIMIT 1",
            (name, key_digest),
        ).fetchone()
        return None if row is None else (IssuedCertificate(*row[:7]), row[7])

    def revoke(self, serial: str, at: str) -> None:
        self._db.execute("UPDATE certificates SET revoked = ? WHERE serial = ?", (at, serial))

    def listed(self, serial: str) -> ListedSerial | None:
        row = self._db.execute(
            "SELECT serial, name, labels, salt, digest, until, used, used_key FROM listed"
            " WHERE serial = ?",
            (serial,),
        ).fetchone()
        return None if row is None else ListedSerial(*row)

    def all_listed(self) -> list[ListedSerial]:
        rows = self._db.execute(
            "SELECT serial, name, labels, salt, digest, until, used, used_key FROM listed"
            " ORDER BY serial"
        )
        return [ListedSerial(*row) for row in rows]

    def put_listed(self, one: ListedSerial) -> None:
        """List a serial, in place of an earlier entry of it or of its name."""
        self._db.execute("DELETE FROM listed WHERE serial = ? OR name = ?", (one.serial, one.name))
        self._db.execute(
            "INSERT INTO listed (serial, name, labels, salt, digest, until, used, used_key)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(one.serial, one.name, one.labels, one.salt, one.digest),
                *(one.until, one.used, one.used_key),
            ),
        )

    def use(self, serial: str, at: str, key_digest: str) -> None:
        """Mark the password of a serial as used."""
        self._db.execute(
            "UPDATE listed SET used = ?, used_key = ? WHERE serial = ?", (at, key_digest, serial)
        )

    def member(self, name: str) -> EnrolledMember | None:
        return next(self._members("name = ?", name), None)

    def member_with(self, identity: bytes) -> EnrolledMember | None:
        return next(self._members("identity = ?", identity), None)

    def members(self) -> list[EnrolledMember]:
        return list(self._members("1 = ?", 1))

    def undelivered(self) -> list[EnrolledMember]:
        """Return the members whose enrolment the aggregator has yet to receive, by name."""
        return list(self._members("is_delivered = ? AND identity IS NOT NULL", 0))

    def mark_delivered(self, members: Iterable[EnrolledMember]) -> None:
        """Record that the aggregator has received these enrolments, unless they changed since."""
        self._db.executemany(
            "UPDATE members SET is_delivered = 1 WHERE name = ? AND identity = ?",
            [(one.name, one.identity) for one in members],
        )

    def _members(self, where: str, value: object) -> Iterator[EnrolledMember]:
        rows = self._db.execute(
            "SELECT name, identity, labels, state, since, is_delivered, pending, approved, former"  # noqa: S608 - texts of this module
            f" FROM members WHERE {where} ORDER BY name",
            (value,),
        )
        for row in rows.fetchall():
            name, identity, labels, state, since, is_delivered, *more = row
            yield EnrolledMember(name, identity, labels, state, since, bool(is_delivered), *more)

    def put_member(self, one: EnrolledMember) -> None:
        """Record a member, in place of an earlier entry of its name."""
        self._db.execute(
            "INSERT INTO members (name, identity, labels, state, since, is_delivered, pending,"
            " approved, former) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET"
            " identity = excluded.identity, labels = excluded.labels, state = excluded.state,"
            " since = excluded.since, is_delivered = excluded.is_delivered,"
            " pending = excluded.pending, approved = excluded.approved, former = excluded.former",
            (
                *(one.name, one.identity, one.labels, one.state, one.since),
                *(int(one.is_delivered), one.pending, one.approved, one.former),
            ),
        )

    def add_act(self, at: str, actor: str, act: str, subject: str, detail: str = "") -> None:
        """Keep an act for the aggregator's audit log, in the transaction of the act."""
        self._db.execute(
            "INSERT INTO acts (id, at, actor, act, subject, detail) VALUES (?, ?, ?, ?, ?, ?)",
            (secrets.token_hex(8), at, actor, act, subject, detail),
        )

    def acts(self) -> list[AuthorityAct]:
        """Return the acts that the aggregator's audit log has yet to receive, oldest first."""
        rows = self._db.execute(
            "SELECT id, at, actor, act, subject, detail FROM acts ORDER BY position"
        )
        return [AuthorityAct(*row) for row in rows]

    def forget_acts(self, acts: Iterable[AuthorityAct]) -> None:
        self._db.executemany("DELETE FROM acts WHERE id = ?", [(one.id,) for one in acts])

    def refusals(self) -> dict[str, int]:
        return dict(self._db.execute("SELECT reason, count FROM refusals ORDER BY reason"))

    def count_refusals(self, counts: Mapping[str, int], at: str, about: str) -> None:
        """Add to the number of refusals; ``about`` is the name or serial of the last one."""
        self._db.executemany(
            "INSERT INTO refusals VALUES (?, ?, ?, ?) ON CONFLICT (reason) DO UPDATE SET"
            " count = refusals.count + excluded.count, last = excluded.last, about = excluded.about",
            [(reason, count, at, about) for reason, count in counts.items()],
        )


@contextmanager
def opened(folder: Path) -> Iterator[Record]:
    with closing(Record(folder)) as record:
        yield record


GRACE: Final = timedelta(days=180)
"""Time after the end of a device's certificate, in which it may still be renewed, where none is configured."""


def devices_of_former(
    record: Record, key_id: str, now: datetime, grace: timedelta = GRACE
) -> list[str]:
    """Return the names of devices that wait for a certificate of the authority with this key.

    Left out are revoked devices, members whose certificate expired longer ago than the time of grace, and
    other devices whose certificate has expired.

    Args:
        key_id: Identifier of the key of the next authority.
    """
    held = newest(one for one in record.certificates() if one.role == "device")
    members = {one.name: one.state for one in record.members()}

    def is_waiting(one: IssuedCertificate) -> bool:
        end = datetime.fromisoformat(one.expires) + (grace if one.name in members else timedelta())
        return one.issuer != key_id and members.get(one.name) != "revoked" and now < end

    return sorted(one.name for one in held.values() if is_waiting(one))


def servers_of_former(record: Record, key_id: str, now: datetime) -> list[IssuedCertificate]:
    """Return the certificates of brokers and aggregators that are not of the authority with this key."""
    held = newest(one for one in record.certificates() if one.role in ("broker", "aggregator"))
    return [one for one in held.values() if one.issuer != key_id and one.is_valid(now)]
