"""Decide over a device's request for a certificate, and record the decision in one transaction.

Time and authority come from the caller. A refusal has a reason, by which refusals are counted.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from aggregator.extensions.authority import certificates as x509
from aggregator.extensions.authority.certificate_reader import (
    CertificateError,
    PresentedCertificate,
)
from aggregator.extensions.authority.certificates import Authority, CertificateRequest
from aggregator.extensions.authority.folder import entry_of, text_of
from aggregator.extensions.authority.record import EnrolledMember, ListedSerial, Record
from aggregator.extensions.authority.record_entries import IssuedCertificate, RefusedError
from edge_sdk.link.tls_files import unqualified
from edge_sdk.protocol.keys import kid_of, verify
from edge_sdk.protocol.public_key import weakness
from edge_sdk.protocol.statements import enrolment_statement, succession_statement
from edge_sdk.protocol.topics import is_device_id

APPROVAL: Final = timedelta(days=1)  # time for which an operator's approval is valid
PASSWORD_BYTES: Final = 15  # 120 bits: a guess costs a TLS handshake, so no slow hash is needed


@dataclass(frozen=True, slots=True)
class Credentials:
    """Proofs that a client has shown beside its request."""

    serial: str = ""  # user name of HTTP Basic; empty without one
    password: str = ""  # password of HTTP Basic
    # TLS client certificate of this authority; None without one
    certificate: PresentedCertificate | None = None
    # SHA-256 of each authority that the client trusts, as it says
    trusted: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class EnrolmentPolicy:
    """Rules of an authority."""

    fleet: str  # fleet whose devices it enrols
    lifetime: timedelta = timedelta(days=30)  # validity of a device's certificate
    # time after the end of a certificate in which the identity key alone renews it
    grace: timedelta = timedelta(days=180)


def new_password() -> str:
    """Return a random password of 120 bits, in 24 characters without 0, 1, 8 and 9."""
    return base64.b32encode(secrets.token_bytes(PASSWORD_BYTES)).decode().lower()


def password_digest(salt: bytes, password: str) -> bytes:
    """Return the salted digest of a password, HMAC-SHA-256.

    >>> password_digest(b"salt", "word").hex()[:16]
    '854e1f7aa0b9de6e'
    """
    return hmac.digest(salt, password.encode(), hashlib.sha256)


def list_serials(
    record: Record,
    serials: Iterable[tuple[str, str, str]],
    until: datetime,
    *,
    now: datetime | None = None,
    who: str = "",
) -> list[tuple[str, str, str]]:
    """List devices that may enrol once, and return serial, name and password of each.

    A serial that is listed already receives a new password, and the earlier one is void.

    Args:
        serials: Serial, common name and labels of each device.
        until: Time at which the passwords expire.
        now: Present time, for the audit log; by default ``until``.
    """
    made = []
    with record.transaction():
        for serial, name, labels in serials:
            salt, password = secrets.token_bytes(16), new_password()
            digest = password_digest(salt, password)
            record.put_listed(ListedSerial(serial, name, labels, salt, digest, text_of(until)))
            detail = f"{name}: one-time password until {text_of(until)}"
            record.add_act(text_of(now or until), who, "list serial", serial, detail)
            made.append((serial, name, password))
    return made


@dataclass(frozen=True, slots=True)
class EnrolmentAuthority:
    """An authority that enrols devices by the rules of its policy."""

    record: Record  # record of the authority, opened by the calling thread
    authority: Authority  # signs certificates
    policy: EnrolmentPolicy

    def enrol(self, der: bytes, shown: Credentials, now: datetime) -> bytes:
        """Enrol a device over `/simpleenroll`, and return its certificate as DER.

        Certificate, use of the password and membership are one transaction. The same request with
        the same key is answered with the same certificate, so a device may repeat it after a lost
        answer.
        """
        request = _request(der, shown)
        _verify_identity(request, self.policy)
        if shown.certificate is not None:
            return self._renew(request, shown, now)
        record = self.record
        with record.transaction():
            listed = _listed(record, shown, request)
            if request.name != listed.name:
                raise RefusedError("foreign common name", listed.serial)
            if listed.used:
                again = record.of_key(listed.name, request.key_digest)
                if listed.used_key == request.key_digest and again and again[0].is_valid(now):
                    return again[1]
                raise RefusedError("used twice", listed.serial)
            if now >= datetime.fromisoformat(listed.until):
                raise RefusedError("password expired", listed.serial)
            owner = record.member_with(request.identity) if request.identity else None
            if owner is not None and owner.name != listed.name:
                raise RefusedError("identity in use", listed.serial)
            record.use(listed.serial, text_of(now), request.key_digest)
            identity = request.identity or None
            since, is_delivered = text_of(now), identity is None
            if identity is None:  # else the aggregator records the enrolment that it receives
                record.add_act(since, f"serial {listed.serial}", "enrol", listed.name)
            record.put_member(
                EnrolledMember(listed.name, identity, listed.labels, "member", since, is_delivered)
            )
            return self._issue(request, shown, now)

    def renew(self, der: bytes, shown: Credentials, now: datetime) -> bytes:
        """Renew a member's certificate over `/simplereenroll`, and return it as DER.

        A member that enrolled with an identity key proves it again: its TLS key alone renews
        nothing. Any other member shows its certificate. A request with another identity key, which
        the former one has signed, also replaces that. Within the time of grace after the end of
        the newest certificate this goes on; later an operator approves.
        """
        request = _request(der, shown)
        _verify_identity(request, self.policy)
        return self._renew(request, shown, now)

    def _renew(self, request: CertificateRequest, shown: Credentials, now: datetime) -> bytes:
        record = self.record
        with record.transaction():
            member = _member(record, request, shown, self.policy)
            again = record.of_key(request.name, request.key_digest)
            if again is not None and _is_fresh(again[0], now):
                self._replace_identity(member, request, now)
                return again[1]
            held = record.certificates(request.name)
            expired = max(datetime.fromisoformat(one.expires) for one in held)
            is_late = now - expired > self.policy.grace
            is_approved = (
                bool(member.approved) and now - datetime.fromisoformat(member.approved) <= APPROVAL
            )
            if not is_late or is_approved:
                if member.pending:
                    member = replace(member, pending="", approved="")
                    record.put_member(member)
                self._replace_identity(member, request, now)
                detail = f"TLS key {request.key_digest}"
                record.add_act(
                    text_of(now), request.name, "renew certificate", request.name, detail
                )
                return self._issue(request, shown, now)
            if not member.pending:
                record.put_member(replace(member, pending=text_of(now)))
        raise RefusedError("expired past grace", request.name, is_pending=True)

    def _replace_identity(
        self, member: EnrolledMember, request: CertificateRequest, now: datetime
    ) -> None:
        """Record the identity key of a request in place of the former one, which has signed it.

        A replacement that the aggregator has yet to receive keeps the key that it knows.
        """
        former = member.identity
        if former is None or request.identity == former:
            return
        known = former if member.is_delivered or member.former is None else member.former
        since = text_of(now)
        self.record.put_member(
            replace(
                member, identity=request.identity, former=known, since=since, is_delivered=False
            )
        )
        detail = f"key {kid_of(request.identity).hex()} instead of {kid_of(former).hex()}"
        self.record.add_act(since, member.name, "replace identity", member.name, detail)

    def _issue(self, request: CertificateRequest, shown: Credentials, now: datetime) -> bytes:
        by, following = self.authority, self.authority.following
        if following is not None and (
            not request.identity or x509.fingerprint_of(following.certificate) in shown.trusted
        ):
            by = following  # a device of another maker follows by /cacerts
        made = x509.issue(
            by, request.name, "device", request.key, now=now, lifetime=self.policy.lifetime
        )
        der = x509.der_of(made)
        entry = entry_of(made, request.name, "device", now)
        self.record.add(entry, request.key_digest, der)
        return der


def approve(record: Record, name: str, now: datetime, who: str = "") -> bool:
    """Approve a renewal after the time of grace; return False if the name does not wait for it."""
    with record.transaction():
        member = record.member(name)
        if member is None or not member.pending:
            return False
        record.put_member(replace(member, approved=text_of(now)))
        record.add_act(text_of(now), who, "approve renewal", name, f"waits since {member.pending}")
    return True


def _request(der: bytes, shown: Credentials) -> CertificateRequest:
    try:
        request = x509.read_request(der)
    except CertificateError as error:
        raise RefusedError("bad request", shown.serial or str(error)[:60]) from error
    if not is_device_id(unqualified(request.name)[1]):
        raise RefusedError("foreign common name", shown.serial or "no device id")
    return request


def _verify_identity(request: CertificateRequest, policy: EnrolmentPolicy) -> None:
    if not request.identity:
        return
    fleet, device = unqualified(request.name)
    if fleet and fleet != policy.fleet:
        raise RefusedError("foreign common name", request.name)
    signed = enrolment_statement(policy.fleet, device, request.identity, request=request.spki)
    if weakness(request.identity) or not verify(request.identity, request.proof, signed):
        raise RefusedError("identity not proved", request.name)


def _listed(record: Record, shown: Credentials, request: CertificateRequest) -> ListedSerial:
    if not shown.serial:
        raise RefusedError("no credentials", request.name)
    found = record.listed(shown.serial)
    if found is None:
        raise RefusedError("unlisted serial", shown.serial)
    given = password_digest(found.salt, shown.password)
    if not found.digest or not hmac.compare_digest(given, found.digest):
        raise RefusedError("wrong password", shown.serial)
    return found


def _member(
    record: Record, request: CertificateRequest, shown: Credentials, policy: EnrolmentPolicy
) -> EnrolledMember:
    """Return the member that asks, after its certificate and its identity key were compared."""
    member = record.member(request.name)
    if member is None:
        raise RefusedError("not a member", request.name)
    if member.state == "revoked":
        raise RefusedError("revoked", request.name)
    if shown.certificate is not None:
        _compare_certificate(record, request, shown.certificate)
    if member.identity is None and shown.certificate is None:
        raise RefusedError("no credentials", request.name)
    if member.identity is not None and not request.identity:
        raise RefusedError("identity not proved", request.name)
    if member.identity is not None and request.identity != member.identity:
        _verify_succession(record, request, member.identity, policy)
    return member


def _verify_succession(
    record: Record, request: CertificateRequest, former: bytes, policy: EnrolmentPolicy
) -> None:
    device = unqualified(request.name)[1]
    signed = succession_statement(policy.fleet, device, request.identity, request=request.spki)
    if not request.succession or not verify(former, request.succession, signed):
        raise RefusedError("foreign identity", request.name)
    if record.member_with(request.identity) is not None:
        raise RefusedError("identity in use", request.name)


def _compare_certificate(
    record: Record, request: CertificateRequest, shown: PresentedCertificate
) -> None:
    if shown.name != request.name:
        raise RefusedError("foreign common name", shown.name)
    for one in record.certificates(request.name):
        if one.serial == shown.serial and one.revoked:
            raise RefusedError("revoked", request.name)


def _is_fresh(one: IssuedCertificate, now: datetime) -> bool:
    begin, end = datetime.fromisoformat(one.issued), datetime.fromisoformat(one.expires)
    return one.is_valid(now) and now - begin < (end - begin) / 4
