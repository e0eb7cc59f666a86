"""Store the console's users with their roles, and verify passwords with scrypt."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path

from edge_sdk.app.permissions import make_private_folder, open_private
from edge_sdk.errors import USAGE, Failure

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
    beside = path.with_suffix(".part")
    with open_private(beside, encoding="utf-8") as file:
        file.write(json.dumps([asdict(users[name]) for name in sorted(users)], indent=1))
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def _digest(password: str, salt: bytes) -> str:
    raw = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(raw, salt=salt, n=_N, r=_R, p=_P, maxmem=2**26).hex()
