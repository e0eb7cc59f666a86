"""Limit sign-in attempts, and keep the sessions of signed-in users, in bounded memory."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from aggregator.extensions.console.users import Role

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
    # role that an issuer has given; None for a local user, whose file has it
    role: Role | None = None
    # ID token, by which the issuer ends its own session; empty for a local user
    id_token: str = field(default="", repr=False)


@dataclass(slots=True)
class Sessions:
    """Sessions by their secret id; above the bound the one used longest ago ends."""

    clock: Callable[[], float]  # monotonic seconds
    _sessions: OrderedDict[str, SignedIn] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, user: str, role: Role | None = None, id_token: str = "") -> str:
        """Return the id of a new session; role and ID token are those of a user of an issuer."""
        key, now = secrets.token_urlsafe(32), self.clock()
        with self._lock:
            self._sessions[key] = SignedIn(user, now, now, role, id_token)
            while len(self._sessions) > SESSIONS:
                self._sessions.popitem(last=False)
        return key

    def user(self, key: str) -> str:
        """Return the user of a session, and note its use; empty if there is no such session."""
        found = self.find(key)
        return found.user if found is not None else ""

    def find(self, key: str) -> SignedIn | None:
        """Return a session, and note its use; None if there is no such session."""
        with self._lock:
            found, now = self._sessions.get(key), self.clock()
            if found is None:
                return None
            if now - found.used > IDLE or now - found.begun > LONGEST:
                del self._sessions[key]
                return None
            self._sessions[key] = replace(found, used=now)
            self._sessions.move_to_end(key)
            return found

    def end(self, key: str) -> SignedIn | None:
        with self._lock:
            return self._sessions.pop(key, None)
