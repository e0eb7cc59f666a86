"""Join the access rules of several fleets in one Mosquitto ``acl_file``.

A broker reads one ``acl_file``. Each fleet's rules stand between two comment lines, and name users
with their fleet (``user north.meter-1``); a fleet replaces its own rules and no others.
"""

from __future__ import annotations

import re

from edge_sdk.link.tls_files import unqualified

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
