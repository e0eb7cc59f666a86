"""Evaluate a Mosquitto ``acl_file``, and check its required grants and denials.

Nothing is sent: the rules are evaluated here, in Mosquitto's order (denials first, the user's own
rules, then patterns). ``tests/broker/test_access.py`` compares the result with a real broker.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from aggregator.ingress.flood_control import UPLINK
from edge_sdk.link.tls_files import unqualified
from edge_sdk.protocol.topics import AGGREGATOR, ALL, ROOT, is_device_id

_MODES = {"read": (True, False), "write": (False, True), "readwrite": (True, True)}
_FLEET = re.compile(rf"\b{ROOT}/([A-Za-z0-9][A-Za-z0-9_-]{{0,31}})/")


@dataclass(frozen=True, slots=True)
class AclRule:
    """One line of an access file."""

    pattern: str  # topic filter; ``%u`` and ``%c`` stand for the name in rules for all users
    reads: bool
    writes: bool  # true if it grants writing; a rule that grants neither denies both

    @property
    def denies(self) -> bool:
        return not (self.reads or self.writes)


@dataclass(frozen=True, slots=True)
class Rules:
    """An access file."""

    # rules by user name
    users: dict[str, list[AclRule]] = field(default_factory=lambda: defaultdict(list))
    patterns: list[AclRule] = field(default_factory=list)

    def may(self, user: str, topic: str, *, write: bool) -> bool:
        """Return whether a client with this user name and client id may write, or read, a topic.

        >>> lines = ["pattern write a/%u/b", "user x", "topic read c/#"]
        >>> rules = read(chr(10).join(lines))
        >>> rules.may("x", "a/x/b", write=True), rules.may("x", "a/y/b", write=True)
        (True, False)
        >>> rules.may("x", "c/d", write=False), rules.may("y", "c/d", write=False)
        (True, False)
        """
        verdict = _verdict(self.users.get(user, []), topic, write=write)
        if verdict is None and not set(user) & set("+#"):
            named = [
                AclRule(_named(rule.pattern, user), rule.reads, rule.writes)
                for rule in self.patterns
            ]
            verdict = _verdict(named, topic, write=write)
        return bool(verdict)


def read(text: str) -> Rules:
    """Parse the text of an access file; lines unknown to Mosquitto are skipped."""
    rules, user = Rules(), ""
    for line in text.splitlines():
        word, _, rest = line.strip().partition(" ")
        mode, _, pattern = rest.strip().partition(" ")
        if mode not in (*_MODES, "deny"):
            mode, pattern = "readwrite", rest
        reads, writes = _MODES.get(mode, (False, False))
        rule = AclRule(pattern.strip(), reads, writes)
        if word == "user":
            user = rest.strip()
            rules.users.setdefault(user, [])
        elif word == "topic":
            rules.users[user].append(rule)
        elif word == "pattern":
            rules.patterns.append(rule)
    return rules


def _named(pattern: str, user: str) -> str:
    return pattern.replace("%u", user).replace("%c", user)


def _verdict(rules: list[AclRule], topic: str, *, write: bool) -> bool | None:
    for rule in sorted(rules, key=lambda one: not one.denies):
        granted = rule.writes if write else rule.reads
        if (rule.denies or granted) and covers(rule.pattern, topic):
            return not rule.denies
    return None


def covers(pattern: str, topic: str) -> bool:
    """Return whether a topic filter matches a topic.

    >>> covers("a/+/c", "a/b/c"), covers("a/#", "a"), covers("a/+", "a/b/c")
    (True, True, False)
    """
    wanted, levels = pattern.split("/"), topic.split("/")
    for i, want in enumerate(wanted):
        if want == "#":
            return True
        if i >= len(levels) or want not in ("+", levels[i]):
            return False
    return len(wanted) == len(levels)


def findings(text: str) -> list[str]:
    """Check an access file for missing grants and for excessive ones.

    Each finding is a sentence; none means that every check agrees with PROTOCOL.md section 2.
    """
    rules = read(text)
    fleets = sorted(set(_FLEET.findall(text)))
    if not fleets:
        return [f"no rule names a fleet's topics ({ROOT}/FLEET/…)"]
    return [
        *(finding for fleet in fleets for finding in _tried(rules, fleet)),
        *(finding for fleet in fleets for finding in _shared(rules, fleet, fleets)),
    ]


@dataclass(frozen=True, slots=True)
class FleetUsers:
    """Names of a fleet's users in an access file."""

    fleet: str
    is_qualified: bool  # true if they are named with it, as in ``north.meter-1``

    @classmethod
    def of(cls, rules: Rules, fleet: str) -> FleetUsers:
        return cls(fleet, any(unqualified(user)[0] == fleet for user in rules.users))

    def user(self, name: str) -> str:
        return f"{self.fleet}.{name}" if self.is_qualified else name

    def devices(self, rules: Rules) -> list[str]:
        """Return the ids of the devices that the file lists."""
        wanted = self.fleet if self.is_qualified else ""
        found = (unqualified(user) for user in rules.users)
        return sorted(name for fleet, name in found if fleet == wanted and is_device_id(name))


def _tried(rules: Rules, fleet: str) -> Iterator[str]:
    root, names = f"{ROOT}/{fleet}", FleetUsers.of(rules, fleet)
    listed = names.devices(rules)
    own = [n for n in listed if rules.may(names.user(n), f"{root}/{n}/up/hello", write=True)]
    device, other = (own or ["device-a"])[0], (own[1:] or ["device-b"])[0]
    user = names.user(device)
    has_devices = bool(listed or rules.patterns)  # else no device is enrolled yet
    if has_devices and (missing := sorted(_missing(rules, root, device, user))):
        yield f"a device cannot use {', '.join(missing)}"
    yield from _retained(rules, root, device, user)
    forbidden = (f"{other}/up/hello", f"{other}/status", f"{ALL}/model", f"{device}/down/task")
    for topic in (f"{root}/{rest}" for rest in forbidden):
        if rules.may(user, topic, write=True):
            yield f"device {device} may write {topic}"
    if rules.may(user, f"{root}/{other}/down/task", write=False):
        yield f"device {device} may read {root}/{other}/down/task"
    for name, topic in _disguised(root, other):
        if rules.may(name, topic, write=True):
            yield f"a certificate named {name} may write {topic}: deny it, or list the devices"
    if not rules.may(names.user(AGGREGATOR), f"{root}/{device}/down/task", write=True):
        yield f"user {names.user(AGGREGATOR)} cannot write {root}/{device}/down/task"


def _shared(rules: Rules, fleet: str, fleets: list[str]) -> Iterator[str]:
    """Yield the grants of a fleet's users on topics of other users."""
    names = FleetUsers.of(rules, fleet)
    users = [names.user(AGGREGATOR), *(names.user(one) for one in names.devices(rules))]
    for other in fleets:
        if other == fleet:
            continue
        device = (FleetUsers.of(rules, other).devices(rules) or ["device-a"])[0]
        for rest in (f"{device}/up/hello", f"{device}/down/task", f"{ALL}/model"):
            topic = f"{ROOT}/{other}/{rest}"
            for user in users:
                if any(rules.may(user, topic, write=write) for write in (False, True)):
                    yield (
                        f"user {user} of fleet {fleet} may use {topic}: issue certificates with "
                        "ca issue --fleet, and write the rules with --shared"
                    )
                    break


def _missing(rules: Rules, root: str, device: str, user: str) -> Iterator[str]:
    writes = (*(f"up/{kind}" for kind in UPLINK), "status")
    for rest in writes:
        if not rules.may(user, f"{root}/{device}/{rest}", write=True):
            yield f"{root}/ID/{rest}"
    for topic, name in ((f"{device}/down/task", "ID/down/#"), (f"{ALL}/part/0", f"{ALL}/#")):
        if not rules.may(user, f"{root}/{topic}", write=False):
            yield f"{root}/{name}"


def _retained(rules: Rules, root: str, device: str, user: str) -> Iterator[str]:
    for topic, why in _unbounded(root, device):
        if rules.may(user, topic, write=True):
            yield (
                f"a device may write any topic like {topic}: {why}; every retained message stays "
                "in the broker's memory and on its disk. Name the topics one by one"
            )


def _unbounded(root: str, device: str) -> Iterator[tuple[str, str]]:
    yield f"{root}/{device}/up/made-up", "any number of them"
    yield f"{root}/{device}/up/chunk/made-up", "any number of them"
    yield f"{root}/{device}/peer/made-up", "a device that is no neighbour"
    yield f"{root}/{device}/made-up", "any number of them"


def _disguised(root: str, other: str) -> Iterator[tuple[str, str]]:
    for name in (f"{other}/up", f"{other}/down", f"{other}/peer", f"{ALL}/part", ALL):
        for rest in ("status", "up/hello", "up/update", "peer/device-c"):
            yield name, f"{root}/{name}/{rest}"
