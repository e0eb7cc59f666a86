"""Write access rules for Mosquitto from the table of topics of PROTOCOL.md, one line per topic.

No rule ends in a wildcard under which a device may write. A retained message stays in the broker's
memory and on its disk until it is replaced, so a device can store at most the number of topics it
may write times the largest packet.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from aggregator.ingress.flood_control import UPLINK
from edge_sdk.link.tls_files import qualified
from edge_sdk.protocol.topics import (
    AGGREGATOR,
    ALL,
    ROOT,
    audience,
    is_device_id,
    is_fleet_id,
)

_NONE: Mapping[str, Collection[str]] = MappingProxyType({})


def mosquitto_access(
    fleet: str,
    devices: Collection[str] | None = None,
    *,
    neighbours: Mapping[str, Collection[str]] = _NONE,
    is_shared: bool = False,
    runs: Mapping[str, Collection[str]] = _NONE,
    named_runs: Collection[str] = (),
    workers: Collection[str] = (),
) -> str:
    """Return the text of an ``acl_file``.

    The rules trust the user name, so the broker must take that, and the client id, from the
    certificate (``use_identity_as_username``, ``use_username_as_clientid``).

    Args:
        fleet: Fleet whose topics are listed.
        devices: Devices with access: one block of rules each, and nothing for any other
            certificate. None writes patterns instead, which give access to every certificate of the
            authority.
        neighbours: For each device, the neighbours with which it may exchange ``peer`` messages.
        is_shared: Several fleets share the broker: users are named with their fleet, as in
            ``north.meter-1``, so that a device of another fleet with the same id has no rights.
        runs: For each listed device, the names of its runs, whose announcements it may read.
        named_runs: Names of the runs whose announcements patterns let every certificate read.
        workers: Names in the certificates of admission workers, which read updates and write nothing.

    Raises:
        ValueError: A name is not a valid id, is too long with its fleet, or patterns are asked for
            on a shared broker: they would grant every fleet's certificates access to this one.

    >>> print(mosquitto_access("north", ["meter-1"]).splitlines()[-1])
    topic readwrite gf/1/north/#
    >>> [line for line in mosquitto_access("north", ["m"], is_shared=True).splitlines() if "user " in line]
    ['user north.m', 'user north._agg']
    """
    if not is_fleet_id(fleet):
        raise ValueError(f"fleet {fleet!r}: expected [A-Za-z0-9][A-Za-z0-9_-]{{0,31}}")
    near = {name for others in neighbours.values() for name in others}
    _check_names({*(devices or ()), *neighbours, *near}, workers)
    if is_shared and devices is None:
        raise ValueError("patterns grant access to every certificate; list the devices instead")
    root = f"{ROOT}/{fleet}"

    def user(name: str) -> str:
        return qualified(fleet, name) if is_shared else name

    lines = [
        "# with: require_certificate true, use_identity_as_username true,",
        "#       use_username_as_clientid true",
    ]
    if devices is None:
        own = [*_own(root, "%u"), *(f"read {root}/{audience(run)}/#" for run in named_runs)]
        lines += [*_denials(root), *(f"pattern {rule}" for rule in own)]
    for name in sorted(neighbours if devices is None else devices):
        rules = [] if devices is None else _own(root, name)
        rules += [f"read {root}/{audience(run)}/#" for run in runs.get(name, ())]
        for other in sorted(neighbours.get(name, ())):
            rules += [f"write {root}/{name}/peer/{other}", f"read {root}/{other}/peer/{name}"]
        lines += [f"user {user(name)}", *(f"topic {rule}" for rule in rules)]
    for name in sorted(workers):
        lines += [f"user {user(name)}", f"topic read {root}/+/up/update"]
    lines += [f"user {user(AGGREGATOR)}", f"topic readwrite {root}/#"]
    return "".join(f"{line}\n" for line in lines)


def _check_names(devices: Collection[str], workers: Collection[str]) -> None:
    for name in devices:
        if name in workers:
            raise ValueError(f"worker {name!r}: a device has this id; choose another name")
    for name in (*devices, *workers):
        if not is_device_id(name):
            raise ValueError(f"device {name!r}: expected [A-Za-z0-9][A-Za-z0-9_-]{{0,63}}")


def _own(root: str, name: str) -> list[str]:
    return [
        *(f"write {root}/{name}/up/{kind}" for kind in UPLINK),
        f"write {root}/{name}/status",
        f"read {root}/{name}/down/#",
        f"read {root}/{ALL}/#",
    ]


def _denials(root: str) -> list[str]:
    """Return rules that keep a certificate named ``meter-1/up`` out of the topics of ``meter-1``.

    Mosquitto inserts a name into a pattern unchanged, slashes included. No device writes a topic of
    seven levels, nor one of six that ends in ``status``.
    """
    return [
        "# names with a slash, and _all, must not reach the topics of others",
        f"pattern deny {root}/+/+/status",
        f"pattern deny {root}/+/+/+/+/#",
        f"pattern deny {root}/{ALL}/status",
        f"pattern deny {root}/{ALL}/up/#",
    ]
