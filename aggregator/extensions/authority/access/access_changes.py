"""Change the rules of single users in a Mosquitto ``acl_file``, and leave every other line as it is.

A broker reads one ``acl_file``. The rules of each fleet that shares it stand between two comment lines, and
name users with their fleet (``user north.meter-1``); a fleet replaces its own rules and no others.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from edge_sdk.link.tls_files import unqualified
from edge_sdk.protocol.topics import ROOT


def without_user(text: str, user: str) -> str:
    r"""Return the rules without those of a user.

    >>> without_user("pattern read a\nuser x\ntopic read b\nuser y\ntopic read c\n", "x")
    'pattern read a\nuser y\ntopic read c\n'
    """
    return "".join(line for owner, line in _owned(text) if owner != user)


def users(text: str) -> list[str]:
    r"""Return the users that have rules, in their order.

    >>> users("pattern read a\nuser x\ntopic read b\nuser y\n")
    ['x', 'y']
    """
    return list(dict.fromkeys(owner for owner, _ in _owned(text) if owner))


def denied_users(text: str, fleet: str) -> list[str]:
    r"""Return the users to whom a whole fleet is denied.

    >>> denied_users("user x\ntopic deny gf/1/north/#\nuser y\ntopic read a\n", "north")
    ['x']
    """
    denial = _denial(fleet)
    return [owner for owner, line in _owned(text) if owner and line.strip() == denial]


def with_denied(text: str, fleet: str, users: Collection[str]) -> str:
    r"""Return the rules with everything of a fleet denied to some users, in place of their rules.

    A denial comes before all other rules, patterns included, so a connected device neither sends
    nor receives anything from the moment at which the broker reads it.

    >>> with_denied("pattern write gf/1/north/%u/#\nuser x\ntopic read b\n", "north", ["x"])
    'pattern write gf/1/north/%u/#\nuser x\ntopic deny gf/1/north/#\n'
    """
    return with_users(text, fleet, {user: [_denial(fleet)] for user in sorted(users)})


def with_users(text: str, fleet: str, rules: Mapping[str, Sequence[str]]) -> str:
    r"""Return the rules with these of some users, in place of their earlier ones.

    >>> with_users("user x\ntopic read a\nuser y\ntopic read b\n", "north", {"x": ["topic read c"]})
    'user y\ntopic read b\nuser x\ntopic read c\n'
    """
    kept = "".join(line for owner, line in _owned(text) if owner not in rules)
    return _inserted(kept, fleet, list(rules.items()))


def with_user(text: str, fleet: str, user: str, rules: Sequence[str]) -> str:
    r"""Return the rules with these of a user, in place of its earlier ones.

    >>> with_user("user x\ntopic deny gf/1/north/#\n", "north", "x", ["topic read a"])
    'user x\ntopic read a\n'
    """
    return with_users(text, fleet, {user: rules})


def has_patterns(text: str, fleet: str) -> bool:
    """Return whether the rules of a fleet are patterns, which hold for every certificate."""
    return any(
        line.startswith(("pattern read", "pattern write")) and f" {ROOT}/{fleet}/" in line
        for _, line in _owned(text)
    )


def rules_by_user(text: str) -> dict[str, list[str]]:
    r"""Return the rules of each user.

    >>> rules_by_user("user x\ntopic read b\nuser y\ntopic read c\n")
    {'x': ['topic read b'], 'y': ['topic read c']}
    """
    found: defaultdict[str, list[str]] = defaultdict(list)
    for owner, line in _owned(text):
        if owner and line.startswith("topic "):
            found[owner].append(line.strip())
    return dict(found)


def is_denied(rules: Collection[str], fleet: str) -> bool:
    return _denial(fleet) in rules


@contextmanager
def locked_access_file(path: Path) -> Iterator[None]:
    """Let one process at a time change a file of access rules."""
    with path.with_name(f"{path.name}.lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def edit_access_file(path: Path, change: Callable[[str], str]) -> None:
    """Change a file of access rules, if the change is one."""
    with locked_access_file(path):
        before = path.read_text("utf-8")
        after = change(before)
        if after != before:
            replace_access_file(path, after)


def replace_access_file(path: Path, rules: str) -> None:
    """Replace a file of access rules at once, for Mosquitto may read it at any time.

    The file has mode 0640: Mosquitto warns of one that everyone can read. A file that exists keeps
    its group.
    """
    beside = path.with_name(f"{path.name}.part")
    beside.write_text(rules, "utf-8")
    beside.chmod(0o640)
    if path.exists():
        with suppress(PermissionError):
            os.chown(beside, -1, path.stat().st_gid)
    beside.replace(path)


def _owned(text: str) -> Iterator[tuple[str | None, str]]:
    user: str | None = None
    for line in text.splitlines(keepends=True):
        whole = line if line.endswith("\n") else f"{line}\n"
        if whole.startswith("user "):
            user = whole[5:].strip()
        elif not whole.startswith("topic "):
            user = None
        yield user, whole


def _denial(fleet: str) -> str:
    return f"topic deny {ROOT}/{fleet}/#"


def _inserted(text: str, fleet: str, blocks: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Add blocks of rules at the end: of the fleet's section, where fleets share the file."""
    added = "".join(
        "".join(f"{line}\n" for line in (f"user {user}", *rules)) for user, rules in blocks
    )
    end = f"# end fleet {fleet}\n"
    before, found, after = text.partition(end)
    return f"{before}{added}{found}{after}" if found else text + added


_FLEET = re.compile(r"^(?:pattern|topic) \w+ gf/1/([^/\s]+)/", re.MULTILINE)
_SECTION = re.compile(r"^# begin fleet (\S+)\n(.*?)^# end fleet \1\n", re.MULTILINE | re.DOTALL)
_USER = re.compile(r"^user (.*)$", re.MULTILINE)


def fleets_in(text: str) -> set[str]:
    r"""Return the fleets whose topics an access file names.

    >>> sorted(fleets_in("user a\ntopic read gf/1/north/#\ntopic read gf/1/south/#\n"))
    ['north', 'south']
    """
    return set(_FLEET.findall(text))


def joined(before: str, fleet: str, rules: str) -> str:
    r"""Return an access file in which these are the rules of a fleet; those of others stay.

    Args:
        before: Present text of the file; empty without one.
        fleet: Fleet whose rules are replaced.
        rules: Its rules, with qualified names (``mosquitto_access(…, is_shared=True)``).

    Raises:
        ValueError: The file grants rights on another fleet's topics to unqualified names, which a
            certificate of this fleet may carry as well.

    >>> north = joined("", "north", "user north._agg\ntopic readwrite gf/1/north/#\n")
    >>> both = joined(north, "south", "user south._agg\ntopic readwrite gf/1/south/#\n")
    >>> [line for line in both.splitlines() if line.startswith("user")]
    ['user north._agg', 'user south._agg']
    >>> joined(both, "south", "user south._agg\ntopic readwrite gf/1/south/#\n") == both
    True
    """
    sections = {match[1]: match[2] for match in _SECTION.finditer(before)}
    outside = _SECTION.sub("", before)
    if loose := fleets_in(outside) - {fleet}:
        raise ValueError(
            f"the rules of fleet {min(loose)} in it are not for a shared broker: write them again "
            "with --shared first, or choose another file"
        )
    for name, text in sections.items():
        users = _USER.findall(text)
        if name != fleet and ("pattern " in text or any(unqualified(u)[0] != name for u in users)):
            raise ValueError(f"the rules of fleet {name} in it name users of other fleets")
    sections[fleet] = rules
    return "".join(
        f"# begin fleet {name}\n{sections[name]}# end fleet {name}\n" for name in sorted(sections)
    )
