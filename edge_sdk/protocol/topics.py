"""Build, parse and subscribe to the topics of the protocol."""

from __future__ import annotations

import re

from edge_sdk.app.lean_dataclass import dataclass

ROOT = "gf/1"
AGGREGATOR = "_agg"
ALL = "_all"
SLOTS_LIMIT = 256  # parts of a common model: as many as a body may have chunks

DEVICE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
FLEET_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_KIND = re.compile(r"[a-z]{1,16}")
_RUN = re.compile(r"[a-z][a-z0-9-]{0,15}")
_TAIL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TAKEN = frozenset(("all", "agg", "root"))
_WORKER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,15}")


@dataclass(frozen=True, slots=True)
class TopicAddress:
    """A parsed topic. ``id`` is the device for up, down, status and peer, the audience for all."""

    fleet: str
    id: str
    direction: str  # up, down, status, peer or all
    kind: str  # the kind expected; empty under peer, where the envelope names it
    tail: str = ""  # worker of a chunk, slot of a part, neighbour of a peer, or an extension's


def is_device_id(text: str) -> bool:
    """Return whether a text may name a device: as topic level, user name and envelope sender.

    >>> is_device_id("meter-0042"), is_device_id("_agg"), is_device_id("a/b")
    (True, False, False)
    """
    return DEVICE_ID.fullmatch(text) is not None


def is_fleet_id(text: str) -> bool:
    """Return whether a text may name a fleet."""
    return FLEET_ID.fullmatch(text) is not None


def is_run_name(text: str) -> bool:
    """Return whether a text may name a run.

    >>> is_run_name("meters"), is_run_name("all"), is_run_name("Meters")
    (True, False, False)
    """
    return _RUN.fullmatch(text) is not None and text not in _TAKEN


def audience(run: str) -> str:
    """Return the audience of a run's announcements: level 4 of their topics, and their recipient.

    >>> audience(""), audience("meters")
    ('_all', '_meters')
    """
    return f"_{run}" if run else ALL


def is_unkept(pattern: str) -> bool:
    """Return whether a topic filter is subscribed to with quality of service 0.

    Only ``time`` is. A broker that raises messages to the subscription's quality would otherwise
    queue one a minute for every sleeping device.

    >>> is_unkept("gf/1/north/_all/time"), is_unkept("gf/1/north/_all/keys")
    (True, False)
    """
    return pattern.endswith(f"/{ALL}/time")


def up(fleet: str, device: str, kind: str, worker: str | None = None) -> str:
    """Return the topic of a message from a device to the aggregator.

    >>> up("north", "meter-0042", "update"), up("north", "meter-0042", "chunk", "w1")
    ('gf/1/north/meter-0042/up/update', 'gf/1/north/meter-0042/up/chunk/w1')
    """
    tail = f"/{worker}" if worker else ""
    return f"{ROOT}/{fleet}/{device}/up/{kind}{tail}"


def status(fleet: str, device: str) -> str:
    return f"{ROOT}/{fleet}/{device}/status"


def down(fleet: str, device: str, kind: str) -> str:
    return f"{ROOT}/{fleet}/{device}/down/{kind}"


def common(fleet: str, kind: str, audience: str = ALL) -> str:
    """Return the retained topic of an announcement to all devices, or to those of a run."""
    return f"{ROOT}/{fleet}/{audience}/{kind}"


def part(fleet: str, slot: int, audience: str = ALL) -> str:
    return f"{ROOT}/{fleet}/{audience}/part/{slot}"


def peer(fleet: str, device: str, neighbour: str) -> str:
    """Return the topic of a message from a device to one neighbour: below the sender's id.

    >>> peer("north", "meter-0042", "meter-0043")
    'gf/1/north/meter-0042/peer/meter-0043'
    """
    return f"{ROOT}/{fleet}/{device}/peer/{neighbour}"


def parse(topic: str) -> TopicAddress | None:
    """Parse a topic; return None if it is not exactly a topic of the protocol.

    >>> parse("gf/1/north/meter-0042/up/update")
    TopicAddress(fleet='north', id='meter-0042', direction='up', kind='update', tail='')
    >>> parse("gf/1/north/_all/part/7").tail
    '7'
    >>> parse("gf/1/north/_all/weather/utrecht").tail
    'utrecht'
    >>> parse("gf/2/north/meter-0042/up/update") is parse("gf/1/north/_agg/up/update") is None
    True
    """
    levels = topic.split("/")
    if len(levels) < 5 or levels[:2] != ["gf", "1"] or not is_fleet_id(levels[2]):
        return None
    fleet, name, rest = levels[2], levels[3], levels[4:]
    if name == ALL or (name[:1] == "_" and is_run_name(name[1:])):
        return _parse_common(fleet, name, rest)
    if not is_device_id(name):
        return None
    return _parse_own(fleet, name, rest)


def _parse_common(fleet: str, name: str, rest: list[str]) -> TopicAddress | None:
    match rest:
        case ["part", slot] if slot.isascii() and slot.isdigit() and slot == str(int(slot[:4])):
            return (
                TopicAddress(fleet, name, "all", "part", slot) if int(slot) < SLOTS_LIMIT else None
            )
        case [kind, *tail] if kind != "part" and _KIND.fullmatch(kind):
            if not tail or (name == ALL and len(tail) == 1 and _TAIL.fullmatch(tail[0])):
                return TopicAddress(fleet, name, "all", kind, *tail)
    return None


def _parse_own(fleet: str, name: str, rest: list[str]) -> TopicAddress | None:
    match rest:
        case ["status"]:
            return TopicAddress(fleet, name, "status", "status")
        case ["up" | "down" as direction, kind] if _KIND.fullmatch(kind):
            return TopicAddress(fleet, name, direction, kind)
        case ["up", "chunk", worker] if _WORKER.fullmatch(worker):
            return TopicAddress(fleet, name, "up", "chunk", worker)
        case ["peer", other] if is_device_id(other):
            return TopicAddress(fleet, name, "peer", "", other)
    return None


def device_filters(fleet: str, device: str, audience: str = ALL) -> tuple[str, ...]:
    """Return the filters that a device subscribes to after every connect; none of them overlap."""
    own = (f"{ROOT}/{fleet}/{device}/down/#", common(fleet, "keys"), common(fleet, "time"))
    return own + run_filters(fleet, audience)


def time_filters(fleet: str, device: str) -> tuple[str, ...]:
    """Return the topics of a limited connection, which only brings the signed time.

    >>> time_filters("north", "meter-1")
    ('gf/1/north/_all/keys', 'gf/1/north/meter-1/down/welcome', 'gf/1/north/meter-1/down/floor')
    """
    return common(fleet, "keys"), down(fleet, device, "welcome"), down(fleet, device, "floor")


def run_filters(fleet: str, audience: str) -> tuple[str, ...]:
    return common(fleet, "bundle", audience), common(fleet, "model", audience)


def parts_filter(fleet: str, audience: str = ALL) -> str:
    """Return the filter that a device adds while it fetches the common model, and only then."""
    return f"{ROOT}/{fleet}/{audience}/part/#"
