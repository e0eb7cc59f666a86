"""Hold a store against the count of releases outside its folder, and find where neither is known."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from edge_sdk.app.cli import fields
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import SignerUnavailable, StoreFull
from edge_sdk.extensions.budget.release_count import (
    REMEDY,
    CountError,
    Counts,
    ReleaseCount,
    SecondCount,
    begin_counts,
    loss_of_scores,
    read_counts,
    reconciled,
    renew_counts,
)
from edge_sdk.protocol.keys import Signer
from edge_sdk.store.release_gate import COUNTED
from edge_sdk.store.second_count import CountFound, CountPlace, has_begun, note_uncounted
from edge_sdk.store.store import DeviceStore

logger = logging.getLogger(__name__)


class CountsInFile:
    """The counts of one device in a signed file: the ``OutsideCount`` of this extension."""

    @staticmethod
    def begin(path: Path, signer: Signer, recorded: Mapping[str, int]) -> None:
        begin_counts(path, signer, recorded)

    @staticmethod
    def renew(path: Path, former: Signer, new: Signer) -> None:
        renew_counts(path, former, new)

    @staticmethod
    def find(store: DeviceStore | None, place: CountPlace, public: bytes) -> CountFound:
        """Return the count of a participation, as far as file and store show."""
        found = find_count(store, place, public)
        releases = 0 if found.count is None else found.count.releases
        return CountFound(releases, found.why, REMEDY, found.is_lost)

    @staticmethod
    def recover(store: DeviceStore, place: CountPlace, signer: Signer) -> None:
        """Continue a store from the larger count, and begin the count outside its folder."""
        recover_count(store, place, signer)


@dataclass(frozen=True, slots=True)
class CountOfStore:
    """The count with which a store continues."""

    count: ReleaseCount | None  # the count; None if it is not known
    counts: Counts
    # why the file could not be read; empty if it was read, or where no budget needs it
    why: str = ""
    is_lost: bool = False  # true if what was released is not known, and a budget depends on it


def find_count(store: DeviceStore | None, place: CountPlace, public: bytes) -> CountOfStore:
    """Return the count of a participation, as far as file and store show.

    A file without the participation has never counted it: it is new, or older than the file. A missing
    file is made from the ledger once, for the store of an older version of this software.

    Args:
        store: Store of the participation; None if it has none.
        public: Raw public identity key.
    """
    why = ""
    try:
        counts = read_counts(place.path, public)
    except CountError as error:
        counts, why = {}, str(error)
    own = ReleaseCount() if store is None else recorded(store)
    if not why:
        return CountOfStore(counts.get(place.name, own).joined(own), counts)
    is_old = store is not None and not store.fact(COUNTED) and has_begun(store)
    if is_old and place.is_needed:
        return CountOfStore(own, {})
    is_silent = is_old or not place.is_used
    return CountOfStore(None, {}, "" if is_silent else why, is_lost=place.is_needed)


def recover_count(store: DeviceStore, place: CountPlace, signer: Signer) -> None:
    """Continue a store from the larger count, and begin the count outside its folder.

    Args:
        store: Store of a participation, open for writing.
        signer: Identity key.
    """
    found = find_count(store, place, signer.public)
    if found.why:
        logger.error("release count missing %s", fields(why=found.why, do=REMEDY))
    if found.count is None:
        store.count_outside(None, is_lost=found.is_lost)
        note_uncounted(store)
        return
    own, numbers = recorded(store), store.numbers()
    after, charges = reconciled(numbers, own, found.count)
    if after != numbers or charges:
        counts = {"store": own.releases, "outside": found.count.releases}
        logger.warning("releases recovered %s", fields(**counts, is_old=int(after.lost)))
        store.charge(after, charges)
    second = SecondCount(place.path, place.name, signer, found.count, found.counts)
    store.count_outside(second)
    if own.line < found.count.line:
        store.begin_noise_anew(0)
    if place.name not in found.counts:
        _begin(second, found.count)
    if place.path.exists() and not store.fact(COUNTED):
        store.set_facts(**{COUNTED: 1})


def _begin(second: SecondCount, count: ReleaseCount) -> None:
    try:
        second.write(count)
    except SignerUnavailable:
        logger.warning("release count not written %s", fields(why="the token of the key is away"))
    except StoreFull as error:
        logger.error("release count not written %s", fields(why=error, do=error.hint))  # noqa: TRY400 - no defect


def recorded(store: DeviceStore) -> ReleaseCount:
    scores = loss_of_scores(store.ledger())
    return ReleaseCount(store.numbers().spent, store.count_charges(), scores)
