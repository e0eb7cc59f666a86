"""Decide who looks at a page and who may act: host, origin, session, role and form token."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from starlette.requests import Request

from aggregator.config import AggregatorConfig
from aggregator.config.console import OidcSection
from aggregator.console.sign_in import LOCKED, AttemptLimit, Sessions
from aggregator.console.users import Role, User, is_password, read_users
from aggregator.operations.http_status import split
from edge_sdk.app.cli import USAGE, Failure, fields

logger = logging.getLogger(__name__)

COOKIE = "gridfed_console"
LARGEST = 16_384  # bytes of a form
BY_NAME, BY_ADDRESS = 5, 50  # failures before a name, or an address, is locked


class BindError(Failure):
    """An address on which the console may not be served as it is configured."""

    exit_code = USAGE


class RefusedRequestError(Exception):
    """A request that is refused.

    Attributes:
        status: HTTP status.
    """

    def __init__(self, status: int, sentence: str) -> None:
        """Set the status and the sentence that the page shows."""
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True, slots=True)
class Viewer:
    """Person who looks at a page.

    Attributes:
        name: Name in the order log.
        role: Role.
        session: Secret id of the session.
        is_local: True if no sign-in is needed, because there are no users.
    """

    name: str
    role: Role
    session: str
    is_local: bool = False


@dataclass(frozen=True, slots=True)
class Access:
    """Access rules of one console.

    Attributes:
        config: Configuration with the section ``console``.
        users_file: File of the users.
        sessions: Sessions of signed-in users.
        names: Failed sign-ins by user.
        addresses: Failed sign-ins by address.
        secret: Key of the form tokens, new with every start.
    """

    config: AggregatorConfig
    users_file: Path
    sessions: Sessions = field(default_factory=lambda: Sessions(time.monotonic))
    names: AttemptLimit = field(default_factory=lambda: AttemptLimit(time.monotonic, BY_NAME))
    addresses: AttemptLimit = field(
        default_factory=lambda: AttemptLimit(time.monotonic, BY_ADDRESS)
    )
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32))

    @property
    def users(self) -> Mapping[str, User]:
        """Return the users as the file has them now."""
        return read_users(self.users_file)

    @property
    def is_https(self) -> bool:
        """Return whether browsers reach the console by HTTPS."""
        return self.config.console.behind_proxy or self.config.console.cert_file is not None

    def viewer(self, request: Request) -> Viewer | None:
        """Return who sends a request; None without a session where one is needed."""
        key, users = request.cookies.get(COOKIE, ""), self.users
        section = self.config.console
        if not users and section.oidc is None and is_loopback(section.listen):
            if not section.behind_proxy:
                return Viewer("local", Role.SECURITY, key or secrets.token_urlsafe(32), True)
            return None
        session = self.sessions.find(key)
        if session is None:
            return None
        if session.role is not None:
            return Viewer(session.user, session.role, key)
        user = users.get(session.user)
        return Viewer(user.name, user.rank, key) if user is not None else None

    def token(self, viewer: Viewer) -> str:
        """Return the token that every form of a viewer must send."""
        return hmac.new(self.secret, viewer.session.encode(), hashlib.sha256).hexdigest()

    def require_host(self, request: Request) -> None:
        """Refuse a request under another name than the console's, as after DNS rebinding.

        Raises:
            RefusedRequestError: 400.
        """
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
        allowed = {"localhost", *self.config.console.hosts}
        if host not in allowed and not _is_loopback_name(host):
            raise RefusedRequestError(
                400, f"The name {host!r} is not one of this console: set console.hosts."
            )

    def require_origin(self, request: Request) -> None:
        """Refuse a form that another site sends.

        Raises:
            RefusedRequestError: 403.
        """
        origin = urlsplit(request.headers.get("origin", ""))
        if not origin.netloc or origin.netloc != request.headers.get("host", ""):
            raise RefusedRequestError(403, "The form was not sent from a page of this console.")

    def require_act(self, viewer: Viewer, form: Mapping[str, str], least: Role) -> None:
        """Refuse an act without the form's token or without the role.

        Raises:
            RefusedRequestError: 403.
        """
        if not hmac.compare_digest(form.get("token", "").encode(), self.token(viewer).encode()):
            raise RefusedRequestError(403, "The form has expired: load the page again.")
        if viewer.role < least:
            raise RefusedRequestError(
                403,
                f"This needs the role {least.name.lower()}; {viewer.name} is "
                f"{viewer.role.name.lower()}.",
            )

    def require_free(self, address: str) -> None:
        """Refuse an address with too many failed sign-ins.

        Raises:
            RefusedRequestError: 429.
        """
        if self.addresses.is_locked(address):
            raise RefusedRequestError(429, "Too many failed attempts: wait 15 minutes.")

    def record_failure(self, address: str) -> None:
        """Count a failed sign-in of an address, and log it once when that locks the address."""
        if self.addresses.record_failure(address):
            log_lock("address", address, address)

    def sign_in(self, name: str, password: str, address: str) -> str:
        """Return the id of a new session.

        Raises:
            RefusedRequestError: 429 while locked; 403 for a wrong name or password.
        """
        user = self.users.get(name)
        known = name if user is not None else ""
        if self.names.is_locked(known) or self.addresses.is_locked(address):
            raise RefusedRequestError(429, "Too many failed attempts: wait 15 minutes.")
        if not is_password(user, password):
            if self.names.record_failure(known):
                log_lock("name", known or "of no user", address)
            self.record_failure(address)
            raise RefusedRequestError(403, "Name or password is wrong.")
        self.names.forget(known)
        self.addresses.forget(address)
        logger.info("console signed in %s", fields(name=name, address=address))
        return self.sessions.begin(name)


def address_of(request: Request) -> str:
    """Return the address from which a request comes."""
    return request.client.host if request.client else ""


def log_lock(what: str, which: str, address: str) -> None:
    """Log that a name or an address is locked; the attempts while it is locked are not logged."""
    logger.warning(
        "console sign-in locked %s", fields(what=what, which=which, address=address, seconds=LOCKED)
    )


def log_refusal(request: Request, error: RefusedRequestError) -> None:
    """Log a refused request; a page that only needs a sign-in, or is too frequent, is not logged."""
    is_page = error.status == 401 and request.method == "GET"
    if not is_page and error.status not in {429, 503}:
        address, path = address_of(request), request.url.path[:100]
        logger.warning(
            "console request refused %s",
            fields(path=path, status=error.status, address=address, why=str(error)),
        )


def is_loopback(listen: str) -> bool:
    """Return whether an address is reachable from this machine only.

    >>> is_loopback("127.0.0.1:9470"), is_loopback("[::1]:1"), is_loopback("0.0.0.0:9470")
    (True, True, False)
    """
    return _is_loopback_name(split(listen)[0])


def _is_loopback_name(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_bind(config: AggregatorConfig, users: Mapping[str, User]) -> None:
    """Refuse an address that others can reach without sign-in, or without HTTPS.

    Raises:
        BindError: With the remedy.
    """
    section = config.console
    if (section.cert_file is None) != (section.key_file is None):
        raise BindError("console.cert_file, console.key_file: expected both or none")
    is_open = section.behind_proxy or not is_loopback(section.listen)
    if section.oidc is not None:
        _check_issuer(section.oidc)
    if is_open and not users and section.oidc is None:
        raise BindError(
            f"console.listen: {section.listen} needs users",
            hint="gridfed-console user add NAME --role operator --config aggregator.toml",
        )
    if not is_loopback(section.listen) and section.cert_file is None and not section.behind_proxy:
        raise BindError(
            f"console.listen: {section.listen} needs HTTPS",
            hint="set console.cert_file and console.key_file, or console.behind_proxy = true",
        )


def is_secure(address: str) -> bool:
    """Return whether an address is one with https, or of this machine.

    >>> is_secure("https://a.example/x"), is_secure("http://a.example"), is_secure("http://[::1]:1")
    (True, False, True)
    """
    try:
        found = urlsplit(address)
        host = found.hostname or ""
    except ValueError:
        return False
    return bool(host) and (
        found.scheme == "https" or (found.scheme == "http" and _is_loopback_name(host))
    )


def _check_issuer(section: OidcSection) -> None:
    """Refuse an issuer without https, and one by which no person gets a role.

    Raises:
        BindError: With the key.
    """
    if not is_secure(section.issuer):
        raise BindError(f"console.oidc.issuer: expected an address with https: {section.issuer}")
    if not (section.viewer or section.operator or section.security):
        raise BindError(
            "console.oidc: no person gets a role",
            hint="set console.oidc.viewer, operator or security to values of the claim",
        )


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form; the last value of each name.

    Raises:
        RefusedRequestError: 413 or 400.
    """
    raw = bytearray()
    async for part in request.stream():
        raw += part
        if len(raw) > LARGEST:
            raise RefusedRequestError(413, f"The form has more than {LARGEST} bytes.")
    try:
        fields = parse_qs(raw.decode("utf-8"), keep_blank_values=True, max_num_fields=50)
    except ValueError as error:
        raise RefusedRequestError(400, "The form cannot be read.") from error
    return {name: values[-1].strip() for name, values in fields.items()}
