"""Store the console's users with roles and scrypt digests, limit sign-ins, and keep sessions in bounded memory."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import IntEnum
from pathlib import Path

from edge_sdk.app.permissions import make_private_folder
from edge_sdk.errors import USAGE, Failure
from edge_sdk.protocol.keys import write_atomically

NAME = re.compile(r"[a-z][a-z0-9._-]{0,31}")
LEAST = 12  # characters of a password
MOST = 256  # characters of a password
_N, _R, _P = 2**14, 8, 1  # scrypt: 16 MiB of memory


class UserError(Failure):
    """A user that cannot be added or changed."""

    exit_code = USAGE


class Role(IntEnum):
    """Role of a user; each includes those below it."""

    VIEWER = 1
    OPERATOR = 2
    SECURITY = 3


@dataclass(frozen=True, slots=True)
class User:
    """One user."""

    name: str  # name, as in the order log
    role: str  # name of the role, in lower case
    salt: str  # salt of the password, hex
    digest: str  # scrypt of the password, hex

    @property
    def rank(self) -> Role:
        return Role[self.role.upper()]


def new_user(name: str, role: str, password: str) -> User:
    """Return a user with a newly salted password.

    Raises:
        UserError: Name, role or password is not acceptable.

    >>> new_user("Eve!", "viewer", "correct horse battery")
    Traceback (most recent call last):
    aggregator.extensions.console.users.UserError: user 'Eve!': expected 1 to 32 of a-z 0-9 . _ -, ...
    """
    if not NAME.fullmatch(name):
        raise UserError(
            f"user {name!r}: expected 1 to 32 of a-z 0-9 . _ -, and a letter at the beginning"
        )
    if role.upper() not in Role.__members__:
        raise UserError(f"user {name}: role: expected viewer, operator or security, got {role!r}")
    if not LEAST <= len(password) <= MOST:
        raise UserError(
            f"user {name}: password: expected {LEAST} to {MOST} characters, got {len(password)}"
        )
    salt = secrets.token_bytes(16)
    return User(name, role.lower(), salt.hex(), _digest(password, salt))


def is_password(user: User | None, password: str) -> bool:
    """Return whether a password is the user's; takes as long for an unknown user.

    >>> user = new_user("eve", "viewer", "correct horse battery")
    >>> is_password(user, "correct horse battery"), is_password(user, "wrong"), is_password(None, "")
    (True, False, False)
    """
    salt = bytes.fromhex(user.salt) if user is not None else bytes(16)
    found = _digest(password[:MOST], salt)
    return user is not None and hmac.compare_digest(found, user.digest)


def read_users(path: Path) -> Mapping[str, User]:
    """Return the users of a file, by name; empty if the file is missing."""
    try:
        rows = json.loads(path.read_text("utf-8"))
        users = {row["name"]: User(**row) for row in rows}
        for user in users.values():
            bytes.fromhex(user.salt)
            _ = user.rank
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path}: not a file of users: {error}", hint="restore it") from error
    return users


def write_users(path: Path, users: Mapping[str, User]) -> None:
    """Write the users atomically, readable by their owner only."""
    make_private_folder(path.parent)
    text = json.dumps([asdict(users[name]) for name in sorted(users)], indent=1)
    write_atomically(path, text.encode(), 0o600)


def _digest(password: str, salt: bytes) -> str:
    raw = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(raw, salt=salt, n=_N, r=_R, p=_P, maxmem=2**26).hex()


LOCKED = 900.0  # s that a lock holds
ADDRESSES = 1024  # addresses and names remembered
SESSIONS = 256  # sessions at a time
IDLE = 3600.0  # s without a request after which a session ends
LONGEST = 12 * 3600.0  # s after which a session ends in any case


@dataclass(slots=True)
class _Failures:
    count: int = 0
    last: float = 0.0


@dataclass(slots=True)
class AttemptLimit:
    """Lock a name or an address after some failures, for ``LOCKED`` seconds.

    >>> limit = AttemptLimit(clock=lambda: 0.0, free=5)
    >>> [limit.record_failure("192.0.2.7 eve") for _ in range(5)]
    [False, False, False, False, True]
    >>> limit.is_locked("192.0.2.7 eve"), limit.is_locked("192.0.2.8 eve")
    (True, False)
    """

    clock: Callable[[], float]  # monotonic seconds
    free: int  # failures before it is locked
    _failures: OrderedDict[str, _Failures] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __len__(self) -> int:
        return len(self._failures)

    def is_locked(self, key: str) -> bool:
        """Return whether a name or an address must wait."""
        with self._lock:
            found = self._failures.get(key)
            if found is None:
                return False
            if self.clock() - found.last >= LOCKED:
                del self._failures[key]
                return False
            return found.count >= self.free

    def record_failure(self, key: str) -> bool:
        """Count a failure, and return whether it is the one that locks the name or address.

        The one that failed longest ago is forgotten above the bound.
        """
        with self._lock:
            found = self._failures.setdefault(key, _Failures())
            found.count, found.last = found.count + 1, self.clock()
            self._failures.move_to_end(key)
            while len(self._failures) > ADDRESSES:
                self._failures.popitem(last=False)
            return found.count == self.free

    def forget(self, key: str) -> None:
        with self._lock:
            self._failures.pop(key, None)


@dataclass(frozen=True, slots=True)
class SignedIn:
    """Session of a signed-in user."""

    user: str
    begun: float  # clock's time of its begin
    used: float  # clock's time of its last request


@dataclass(slots=True)
class Sessions:
    """Sessions by their secret id; above the bound the one used longest ago ends."""

    clock: Callable[[], float]  # monotonic seconds
    _sessions: OrderedDict[str, SignedIn] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, user: str) -> str:
        """Return the id of a new session."""
        key, now = secrets.token_urlsafe(32), self.clock()
        with self._lock:
            self._sessions[key] = SignedIn(user, now, now)
            while len(self._sessions) > SESSIONS:
                self._sessions.popitem(last=False)
        return key

    def user(self, key: str) -> str:
        """Return the user of a session, and note its use; empty if there is no such session."""
        with self._lock:
            found, now = self._sessions.get(key), self.clock()
            if found is None:
                return ""
            if now - found.used > IDLE or now - found.begun > LONGEST:
                del self._sessions[key]
                return ""
            self._sessions[key] = replace(found, used=now)
            self._sessions.move_to_end(key)
            return found.user

    def end(self, key: str) -> None:
        with self._lock:
            self._sessions.pop(key, None)
