"""Count releases a second time, outside the state folder, by an extension.

A state folder that is lost, or restored from an old copy, would give a device a new privacy budget if
only the aggregator remembered what had left. An extension counts each release at a ``ReleaseGate``
before the store commits it; the key ``second_count`` of its row names an ``OutsideCount``.

It is loaded where a budget depends on the count, and where a count exists. ``recover_count`` decides at
every start who counts; until then, and where a count that a budget needs is lost, the account has no
room for any release (``DeviceStore.lacks_count``). One that cannot be imported stops the start.

Without such an extension a device holds its releases against the ledger and the aggregator's count, says
in its hellos that it has no second one, and releases nothing under a budget if there has been one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

from edge_sdk.app.cli import fields
from edge_sdk.app.extensions import ExtensionIndex
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.protocol.keys import Signer
from edge_sdk.store.store import COUNTED, DeviceStore

logger = logging.getLogger(__name__)

INDEX: Final = ExtensionIndex("edge_sdk")
_KEY: Final = "second_count"
_MISSING: Final = "the extension that counts releases outside the state folder is not installed"
_INSTALL: Final = "install it as before; nothing leaves without it"


@dataclass(frozen=True, slots=True)
class CountPlace:
    """Place of the count of one participation."""

    path: Path
    name: str  # id of the participation; empty for the device's own
    is_needed: bool  # true if a budget depends on the count

    @property
    def is_used(self) -> bool:
        return self.is_needed or self.path.exists()


@dataclass(frozen=True, slots=True)
class CountFound:
    """The second count of one participation, as far as it is known."""

    releases: int = 0
    # why it is not known; empty if it is, or where no budget needs it
    why: str = ""
    remedy: str = ""
    is_lost: bool = False  # true if the number of releases is unknown, and a budget depends on it


class OutsideCount(Protocol):
    """The extension's implementations of the functions of this module."""

    begin: Callable[[Path, Signer, Mapping[str, int]], None]
    renew: Callable[[Path, Signer, Signer], None]
    find: Callable[[DeviceStore | None, CountPlace, bytes], CountFound]
    recover: Callable[[DeviceStore, CountPlace, Signer], None]  # it calls ``count_outside``


def begin_counts(path: Path, signer: Signer, recorded: Mapping[str, int]) -> None:
    """Begin the counts of an identity key that was made just now; those of earlier keys continue.

    Args:
        recorded: Releases by participation in the state folders that exist.
    """
    if (outside := _loaded()) is not None:
        outside.begin(path, signer, recorded)


def renew_counts(path: Path, former: Signer, new: Signer) -> None:
    """Sign the counts by the key that replaces the identity key, too, or raise ``OSError``."""
    if path.exists() and (outside := _loaded()) is not None:
        outside.renew(path, former, new)


def find_count(store: DeviceStore | None, place: CountPlace, public: bytes) -> CountFound:
    """Return the count of a participation, with or without a store, beside a running agent."""
    if not place.is_used:
        return CountFound()
    if (outside := _loaded()) is not None:
        return outside.find(store, place, public)
    return _found_without(store, place)


def recover_count(store: DeviceStore, place: CountPlace, signer: Signer) -> None:
    """Decide at the start of a device who counts the releases of a store outside its folder."""
    if not place.is_used:
        store.count_outside(None)
        if INDEX.having(_KEY):
            note_uncounted(store)
    elif (outside := _loaded()) is not None:
        outside.recover(store, place, signer)
    else:
        found = _found_without(store, place)
        if found.is_lost:
            logger.error("release count missing %s", fields(why=found.why, do=found.remedy))
        store.count_outside(None, is_lost=found.is_lost)


def note_uncounted(store: DeviceStore) -> None:
    """Record that a new store begins without a count: it is not made from the ledger later."""
    if not (has_begun(store) or store.fact(COUNTED)):
        store.set_facts(**{COUNTED: 1})


def has_begun(store: DeviceStore) -> bool:
    numbers = store.numbers()
    return not numbers.lost or numbers.spent > 0


def _found_without(store: DeviceStore | None, place: CountPlace) -> CountFound:
    had_one = place.path.exists() or (store is not None and store.fact(COUNTED) > 0)
    if place.is_needed and had_one:
        return CountFound(why=_MISSING, remedy=_INSTALL, is_lost=True)
    return CountFound()


def _loaded() -> OutsideCount | None:
    for entry in INDEX.having(_KEY):
        found: OutsideCount = entry.load(_KEY)
        return found
    return None
