"""Compare a store with the count of releases outside its folder, and detect the loss of both."""

from __future__ import annotations

import logging

from edge_sdk.app.cli import fields
from edge_sdk.errors import SignerUnavailable, StoreFull
from edge_sdk.extensions.inspection.release_count import (
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
from edge_sdk.store.second_count import CountFound, CountPlace, has_begun, note_uncounted
from edge_sdk.store.store import COUNTED, DeviceStore

logger = logging.getLogger(__name__)


def find_count(
    store: DeviceStore | None, place: CountPlace, public: bytes
) -> tuple[CountFound, ReleaseCount | None, Counts]:
    """Return the count of a participation, as far as file and store show, and all counts of the file.

    A file without the participation has never counted it: it is new, or older than the file. A missing
    file is made from the ledger once, for the store of an older version of this software.
    """
    own, why = ReleaseCount() if store is None else recorded(store), ""
    try:
        counts = read_counts(place.path, public)
    except CountError as error:
        counts, why = {}, str(error)
    is_old = store is not None and not store.fact(COUNTED) and has_begun(store)
    if why and not (is_old and place.is_needed):
        said = "" if is_old else why
        return CountFound(0, said, REMEDY, is_lost=place.is_needed), None, counts
    count = counts.get(place.name, own).joined(own)
    return CountFound(count.releases), count, counts


def recover_count(store: DeviceStore, place: CountPlace, signer: Signer) -> None:
    """Continue a store from the larger count, and begin the count outside its folder."""
    found, count, counts = find_count(store, place, signer.public)
    if found.why:
        logger.error("release count missing %s", fields(why=found.why, do=REMEDY))
    if count is None:
        store.count_outside(None, is_lost=found.is_lost)
        note_uncounted(store)
        return
    own, numbers = recorded(store), store.numbers()
    after, charges = reconciled(numbers, own, count)
    if after != numbers or charges:
        known = {"store": own.releases, "outside": count.releases}
        logger.warning("releases recovered %s", fields(**known, is_old=int(after.lost)))
        store.charge(after, charges)
    second = SecondCount(place.path, place.name, signer, count, counts)
    store.count_outside(second)
    if own.line < count.line:
        store.begin_noise_anew(0)
    if place.name not in counts:
        _begin(second, count)
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


class CountsInFile:
    """The counts of one device in a signed file."""

    begin, renew = staticmethod(begin_counts), staticmethod(renew_counts)
    recover = staticmethod(recover_count)

    @staticmethod
    def find(store: DeviceStore | None, place: CountPlace, public: bytes) -> CountFound:
        return find_count(store, place, public)[0]
