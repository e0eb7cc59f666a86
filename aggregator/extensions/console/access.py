"""Authenticate viewers of a page and authorize actions: host, origin, session, role and form token."""

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
from aggregator.extensions.console.users import (
    LOCKED,
    AttemptLimit,
    Role,
    Sessions,
    User,
    is_password,
    read_users,
)
from aggregator.operations.status_document import split
from edge_sdk.app.cli import fields
from edge_sdk.errors import USAGE, Failure

logger = logging.getLogger(__name__)

COOKIE = "gridfed_console"
LARGEST = 16_384  # bytes of a form
BY_NAME, BY_ADDRESS = 5, 50  # failures before a name at one address, or an address, is locked
EVERYWHERE = 200  # failures of all addresses together before every attempt waits
SLOW = 3.0  # s that an attempt then waits


class BindError(Failure):
    """Error: an address on which the console's configuration forbids to serve it."""

    exit_code = USAGE


class RefusedRequestError(Exception):
    """A request that is refused."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True, slots=True)
class Viewer:
    """Authenticated reader of a page."""

    name: str  # name in the order log
    role: Role
    session: str  # secret id of the session
    is_local: bool = False  # true if no sign-in is needed, because there are no users


@dataclass(frozen=True, slots=True)
class Access:
    """Access rules of one console."""

    config: AggregatorConfig  # configuration with the section ``console``
    users_file: Path
    # sessions of signed-in users
    sessions: Sessions = field(default_factory=lambda: Sessions(time.monotonic))
    # failed sign-ins by address and user: nobody can lock out a user of another address
    names: AttemptLimit = field(default_factory=lambda: AttemptLimit(time.monotonic, BY_NAME))
    # failed sign-ins by address
    addresses: AttemptLimit = field(
        default_factory=lambda: AttemptLimit(time.monotonic, BY_ADDRESS)
    )
    # failed sign-ins of all addresses
    everywhere: AttemptLimit = field(
        default_factory=lambda: AttemptLimit(time.monotonic, EVERYWHERE)
    )
    # key of the form tokens, new with every start
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32))

    @property
    def users(self) -> Mapping[str, User]:
        return read_users(self.users_file)

    @property
    def is_https(self) -> bool:
        section = self.config.section("console")
        return section.behind_proxy or section.cert_file is not None

    def viewer(self, request: Request) -> Viewer | None:
        """Return the sender of a request; None if a required session is missing."""
        key, users = request.cookies.get(COOKIE, ""), self.users
        section = self.config.section("console")
        if not users and is_loopback(section.listen):
            if not section.behind_proxy:
                return Viewer("local", Role.SECURITY, key or secrets.token_urlsafe(32), True)
            return None
        user = users.get(self.sessions.user(key))
        return Viewer(user.name, user.rank, key) if user is not None else None

    def token(self, viewer: Viewer) -> str:
        """Return the token that every form of a viewer must send."""
        return hmac.new(self.secret, viewer.session.encode(), hashlib.sha256).hexdigest()

    def require_host(self, request: Request) -> None:
        """Refuse a request under another name than the console's, as after DNS rebinding, with 400."""
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
        allowed = {"localhost", *self.config.section("console").hosts}
        if host not in allowed and not _is_loopback_name(host):
            raise RefusedRequestError(
                400, f"The name {host!r} is not one of this console: set console.hosts."
            )

    def require_origin(self, request: Request) -> None:
        """Refuse a form that another site sends, with 403."""
        origin = urlsplit(request.headers.get("origin", ""))
        if not origin.netloc or origin.netloc != request.headers.get("host", ""):
            raise RefusedRequestError(403, "The form was not sent from a page of this console.")

    def require_act(self, viewer: Viewer, form: Mapping[str, str], least: Role) -> None:
        """Refuse an act without the form's token or without the role, with 403."""
        if not hmac.compare_digest(form.get("token", "").encode(), self.token(viewer).encode()):
            raise RefusedRequestError(403, "The form has expired: load the page again.")
        if viewer.role < least:
            raise RefusedRequestError(
                403,
                f"This needs the role {least.name.lower()}; {viewer.name} is "
                f"{viewer.role.name.lower()}.",
            )

    def require_free(self, address: str) -> None:
        """Refuse an address with too many failed sign-ins, with 429."""
        if self.addresses.is_locked(network_of(address)):
            raise RefusedRequestError(429, "Too many failed attempts: wait 15 minutes.")

    def require_unlocked(self, name: str, address: str) -> None:
        """Refuse a name at an address, or an address, with too many failed sign-ins, with 429."""
        self.require_free(address)
        if self.names.is_locked(self._name_at(name, address)):
            raise RefusedRequestError(429, "Too many failed attempts: wait 15 minutes.")

    def _name_at(self, name: str, address: str) -> str:
        return f"{network_of(address)} {name if name in self.users else ''}"

    @property
    def delay(self) -> float:
        """Return the delay of a sign-in in seconds: 0, or ``SLOW`` under an attack."""
        return SLOW if self.everywhere.is_locked("") else 0.0

    def record_failure(self, address: str) -> None:
        """Count a failed sign-in of an address, and log it once when that locks the address."""
        if self.everywhere.record_failure(""):
            logger.warning("console sign-in slowed %s", fields(failures=EVERYWHERE, seconds=SLOW))
        if self.addresses.record_failure(network_of(address)):
            log_lock("address", network_of(address), address)

    def sign_in(self, name: str, password: str, address: str) -> str:
        """Return the id of a new session; refuse with 429 while locked, with 403 for a wrong name or password."""
        self.require_unlocked(name, address)
        user, at = self.users.get(name), self._name_at(name, address)
        if not is_password(user, password):
            if self.names.record_failure(at):
                log_lock("name", name if user is not None else "of no user", address)
            self.record_failure(address)
            raise RefusedRequestError(403, "Name or password is wrong.")
        self.names.forget(at)
        self.addresses.forget(network_of(address))
        logger.info("console signed in %s", fields(name=name, address=address))
        return self.sessions.begin(name)


def address_of(request: Request) -> str:
    return request.client.host if request.client else ""


def network_of(address: str) -> str:
    """Return the network whose failures are counted together: all addresses of one IPv6 customer.

    >>> network_of("192.0.2.7"), network_of("2001:db8::7:1"), network_of("")
    ('192.0.2.7', '2001:db8::/64', '')
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    return str(found.ipv4_mapped or ipaddress.IPv6Network((found.packed[:8] + bytes(8), 64)))


def log_lock(what: str, which: str, address: str) -> None:
    """Log that a name at an address, or an address, is locked; the attempts while it is locked are not logged."""
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
    """Refuse an address that others can reach without sign-in, or without HTTPS."""
    section = config.section("console")
    if (section.cert_file is None) != (section.key_file is None):
        raise BindError("console.cert_file, console.key_file: expected both or none")
    is_open = section.behind_proxy or not is_loopback(section.listen)
    if is_open and not users:
        raise BindError(
            f"console.listen: {section.listen} needs users",
            hint="gridfed-console user add NAME --role operator --config aggregator.toml",
        )
    if not is_loopback(section.listen) and section.cert_file is None and not section.behind_proxy:
        raise BindError(
            f"console.listen: {section.listen} needs HTTPS",
            hint="set console.cert_file and console.key_file, or console.behind_proxy = true",
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
