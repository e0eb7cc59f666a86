"""Count releases a second time, outside the state folder, by an extension.

A state folder that is lost, or restored from an old copy, would give a device a new privacy budget if
only the aggregator remembered what had left. An extension counts each release at a ``ReleaseGate``
before the store commits it; the key ``second_count`` of its row names an ``OutsideCount``.

It is loaded where a budget depends on the count, and where a count exists. A store is told at every
start who counts (``recover_count``); until then, and where a count that a budget needs is lost, its
account has no room for any release (``DeviceStore.lacks_count``). An extension that is listed and
cannot be imported stops the start.

Without such an extension the device holds its releases against the ledger and the aggregator's count,
and says in its hellos that it has no second one. It releases nothing under a budget if there has been
one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from edge_sdk.app.cli import fields
from edge_sdk.app.extensions import ExtensionIndex
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.protocol.keys import Signer
from edge_sdk.store.release_gate import COUNTED
from edge_sdk.store.store import DeviceStore

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
    is_lost: bool = False  # true if what was released is not known, and a budget depends on it


class OutsideCount(Protocol):
    """The counts of one device outside its state folder, as an extension keeps them."""

    @staticmethod
    def begin(path: Path, signer: Signer, recorded: Mapping[str, int]) -> None:
        """Begin the counts of an identity key, as ``begin_counts`` does."""

    @staticmethod
    def renew(path: Path, former: Signer, new: Signer) -> None:
        """Keep the counts readable by a key that replaces the identity key, too."""

    @staticmethod
    def find(store: DeviceStore | None, place: CountPlace, public: bytes) -> CountFound:
        """Return the count of a participation, as far as file and store show."""

    @staticmethod
    def recover(store: DeviceStore, place: CountPlace, signer: Signer) -> None:
        """Continue a store from the larger count, and give it its gate (``count_outside``)."""


def begin_counts(path: Path, signer: Signer, recorded: Mapping[str, int]) -> None:
    """Write the counts of an identity key that was made just now; earlier ones continue.

    Args:
        recorded: Releases by participation in the state folders that exist.

    Raises:
        SignerUnavailable: The key is in a token that is away.
    """
    if (outside := _loaded()) is not None:
        outside.begin(path, signer, recorded)


def renew_counts(path: Path, former: Signer, new: Signer) -> None:
    """Sign the counts by the key that replaces the identity key, too. Repeatable after a kill.

    Raises:
        OSError: The file cannot be written.
    """
    if path.exists() and (outside := _loaded()) is not None:
        outside.renew(path, former, new)


def find_count(store: DeviceStore | None, place: CountPlace, public: bytes) -> CountFound:
    """Return the count of a participation, read beside a running agent.

    Args:
        store: Store of the participation; None if it has none.
        public: Raw public identity key.
    """
    if not place.is_used:
        return CountFound()
    if (outside := _loaded()) is not None:
        return outside.find(store, place, public)
    return _found_without(store, place)


def recover_count(store: DeviceStore, place: CountPlace, signer: Signer) -> None:
    """Decide at the start of a device who counts its releases outside its state folder.

    Args:
        store: Store of a participation, open for writing.
        signer: Identity key.
    """
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
