"""Decide on requests to an EST server in one thread, count refusals, and deliver the decisions."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from aggregator.extensions.authority import certificates as x509
from aggregator.extensions.authority import folder as authority
from aggregator.extensions.authority.certificate_reader import certificates_in, validity
from aggregator.extensions.authority.enrolment import (
    Credentials,
    EnrolmentAuthority,
    EnrolmentPolicy,
)
from aggregator.extensions.authority.folder import text_of
from aggregator.extensions.authority.record import EnrolledMember, Record
from aggregator.extensions.authority.record_entries import AuthorityAct, RefusalReason, RefusedError
from edge_sdk.app.cli import fields
from edge_sdk.errors import Failure
from edge_sdk.link.tls_files import mark_of

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class EstService:
    """The authority behind the server: decisions in one thread, counts, and delivery."""

    folder: Path
    policy: EnrolmentPolicy  # rules of the authority
    # returns the content of the running fleet's ``root.pub``; empty if it is not served
    root: Callable[[], str] = str
    # receives the new members, in order, and gives them to the aggregator; repeated after a crash
    deliver: Callable[[list[EnrolledMember]], None] = lambda _members: None
    passphrase: bytes = b""  # passphrase of the authority's key
    # receives the acts for the aggregator's audit log, likewise
    deliver_acts: Callable[[list[AuthorityAct]], None] = lambda _acts: None
    clock: Callable[[], datetime] = lambda: datetime.now(UTC).replace(microsecond=0)
    # called after the list of revoked certificates was written again
    reload_broker: Callable[[], None] = lambda: None
    changes: int = 0  # number of times that the folder's authorities have changed
    _enrolment: EnrolmentAuthority = field(init=False)
    _thread: ThreadPoolExecutor = field(init=False)
    _refused: Counter[str] = field(default_factory=Counter)
    _last: str = ""
    _root_missing: str = ""
    _marks: tuple[object, ...] = ()
    _is_reload_due: bool = False

    def __post_init__(self) -> None:
        """Load the authority; the record is opened in the thread that uses it."""
        self._marks = self._look()
        loaded = authority.load_folder(self.folder, self.passphrase)
        self._thread = ThreadPoolExecutor(1, "enrolment")
        record = self._thread.submit(Record, self.folder).result()
        self._enrolment = EnrolmentAuthority(record, loaded, self.policy)

    def close(self) -> None:
        self._thread.submit(self._end).result()
        self._thread.shutdown()

    def authorities(self) -> bytes:
        """Return the certificates of the authorities to trust as PKCS #7, DER (RFC 7030, section 4.1.3).

        While the authority is replaced there are two.
        """
        return x509.certs_only(certificates_in((self.folder / authority.CERTIFICATE).read_bytes()))

    def root_key(self) -> str | None:
        """Return the content of ``root.pub``; empty if none is served, None if there must be one.

        It is read at each request: the aggregator's state folder may have been made again.
        """
        try:
            found, self._root_missing = self.root(), ""
        except Failure as error:
            if str(error) != self._root_missing:
                self._root_missing = str(error)
                logger.error("root not served %s", fields(why=error, do=error.hint))  # noqa: TRY400 - no defect
            return None
        return found

    def answer(self, der: bytes, shown: Credentials, *, is_renewal: bool) -> bytes:
        """Return the certificate for a request, as PKCS #7 in DER."""
        return self._thread.submit(self._decide, is_renewal, der, shown).result()

    def refuse(self, reason: RefusalReason, about: str) -> None:
        self._thread.submit(self._count, reason, about)

    def turn(self) -> None:
        """Deliver new members, and save the counts of refusals."""
        self._thread.submit(self._upkeep).result()

    def renew_list(self) -> None:
        """Write the list of revoked certificates again when half of its validity is over."""
        if authority.renew_list_in_time(self.folder, self.clock(), self.passphrase):
            logger.info("revocation list renewed")
            self._is_reload_due = True
        if self._is_reload_due:
            self.reload_broker()
            self._is_reload_due = False

    def _decide(self, is_renewal: bool, der: bytes, shown: Credentials) -> bytes:  # noqa: FBT001 - as answer
        self._follow_folder()
        act = self._enrolment.renew if is_renewal else self._enrolment.enrol
        try:
            made = act(der, shown, self.clock())
        except RefusedError as error:
            self._count(error.reason, error.about)
            raise
        certificate = x509.certificate_of(made)
        name = certificate.subject.rfc4514_string().removeprefix("CN=")
        until = f"{validity(certificate)[1]:%Y-%m-%d}"
        logger.info("certificate issued %s", fields(name=name, until=until))
        return x509.certs_only([certificate])

    def _count(self, reason: RefusalReason, about: str) -> None:
        about = "".join(c if c.isprintable() else "?" for c in about[:64])
        if not self._refused[reason]:
            logger.warning("request refused %s", fields(reason=reason, about=about))
        self._refused[reason] += 1
        self._last = about

    def _look(self) -> tuple[object, ...]:
        names = (authority.CERTIFICATE, authority.KEY, authority.NEXT)
        return tuple(mark_of(self.folder / name) for name in names)

    def _follow_folder(self) -> None:
        """Load the authority again if the operator replaces it."""
        marks = self._look()
        if marks == self._marks:
            return
        loaded = authority.load_folder(self.folder, self.passphrase)
        self._enrolment = replace(self._enrolment, authority=loaded)
        self._marks, self.changes = marks, self.changes + 1
        following = loaded.following.certificate if loaded.following else None
        logger.info(
            "authority changed %s",
            fields(
                sha256=x509.fingerprint_of(loaded.certificate),
                next="none" if following is None else x509.fingerprint_of(following),
            ),
        )

    def _upkeep(self) -> None:
        self._follow_folder()
        if self._refused:
            with self._enrolment.record.transaction():
                now = text_of(self.clock())
                self._enrolment.record.count_refusals(self._refused, now, self._last)
            self._refused.clear()
        if members := self._enrolment.record.undelivered():
            self.deliver(members)
            with self._enrolment.record.transaction():
                self._enrolment.record.mark_delivered(members)
        if acts := self._enrolment.record.acts():
            self.deliver_acts(acts)
            with self._enrolment.record.transaction():
                self._enrolment.record.forget_acts(acts)

    def _end(self) -> None:
        self._upkeep()
        self._enrolment.record.close()
