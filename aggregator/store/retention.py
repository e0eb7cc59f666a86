"""Drop the oldest vectors, states and events, so that each kind stays within its bytes.

A checkpoint is the state of a run after a closed round; ``runs.anchor`` is the oldest one that is
kept. Vectors go only where a committed checkpoint lies after them, and only up to it. So whatever
is left can be applied again, and an audit begins at the anchor. Events go after their vectors.

Closed rounds are counted in blocks of neighbouring ones, a few dozen for each budget: what is in
memory does not grow with the journal.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from aggregator.store import journal, runs, states
from aggregator.store.types import Horizon, Retention, Version

_BLOCKS = 64  # a block is full with this share of a budget
_EVENT = 150  # bytes of an event's row and of its lines in two indexes, besides facts and names
_ROUND = 90  # bytes of a closed round's row besides its report


@dataclass(frozen=True, slots=True)
class Block:
    """Neighbouring closed rounds of one run, and what is kept of them.

    Attributes:
        run: The run.
        position: Journal position of the event that closed the last of them.
        first: The first of these rounds.
        rounds: How many rounds.
        vectors: Bytes of the vectors they took in, and of the states they left.
        facts: Bytes of everything else that is journalled of them.
    """

    run: int
    position: int
    first: int
    rounds: int = 0
    vectors: int = 0
    facts: int = 0

    def joined(self, newer: Block) -> Block:
        """Return one block of two neighbours."""
        return Block(
            self.run,
            newer.position,
            self.first,
            self.rounds + newer.rounds,
            self.vectors + newer.vectors,
            self.facts + newer.facts,
        )

    def is_full(self, limits: Retention) -> bool:
        """Return whether the next round begins a new block."""
        return (
            self.vectors * _BLOCKS >= limits.vectors
            or self.facts * _BLOCKS >= limits.journal
            or self.rounds * _BLOCKS >= limits.rounds
        )


@dataclass(slots=True)
class Kept:
    """What a file keeps, by closed rounds.

    Attributes:
        limits: The budgets.
        bare: Blocks whose vectors are gone, oldest first.
        whole: Blocks that an audit recomputes, oldest first.
        unclosed: Bytes written of states since the last round closed.
    """

    limits: Retention
    bare: deque[Block] = field(default_factory=deque)
    whole: deque[Block] = field(default_factory=deque)
    unclosed: int = 0

    def add(self, one: Block) -> None:
        """Count a round that closed."""
        last = self.whole[-1] if self.whole else None
        if last is not None and last.run == one.run and not last.is_full(self.limits):
            self.whole[-1] = last.joined(one)
        else:
            self.whole.append(one)

    def add_bare(self, one: Block) -> None:
        """Count a closed round whose vectors are gone."""
        last = self.bare[-1] if self.bare else None
        if last is not None and last.run == one.run and not last.is_full(self.limits):
            self.bare[-1] = last.joined(one)
        else:
            self.bare.append(one)

    @property
    def vectors(self) -> int:
        """Bytes of vectors and states."""
        return sum(block.vectors for block in self.whole)

    @property
    def facts(self) -> int:
        """Bytes of events without their vectors."""
        return sum(block.facts for block in (*self.bare, *self.whole))

    @property
    def since(self) -> int:
        """The last round of the newest run that an audit cannot recompute; 0 if it can all."""
        newest = self.whole[-1].run if self.whole else 0
        return next((block.first - 1 for block in self.whole if block.run == newest), 0)

    def due(self, added: Block) -> tuple[Block | None, Block | None]:
        """Take out what is over budget; return the last block to lose its vectors, its events.

        At a time goes a sixteenth of the budget, or twice what was added just now if that is
        more: no commit takes long, however full the file was, and it comes within its budget.

        Example:
            >>> kept = Kept(Retention(vectors=100, journal=1000, rounds=10**6))
            >>> for number in (1, 2, 3):
            ...     newest = Block(1, number, number, 1, vectors=40, facts=10)
            ...     kept.add(newest)
            >>> kept.due(newest)[0].position, kept.vectors, len(kept.bare)
            (1, 80, 1)
        """
        bared = self._bare_due(added)
        dropped, gone, facts = None, 0, self.facts
        most = max(self.limits.journal // 16, 2 * added.facts)
        while facts > self.limits.journal and gone <= most:
            if not self.bare and len(self.whole) > 1:
                bared = self._strip()
            if not self.bare:
                break
            dropped = self.bare.popleft()
            gone, facts = gone + dropped.facts, facts - dropped.facts
        return bared, dropped

    def _bare_due(self, added: Block) -> Block | None:
        bared, gone = None, 0
        vectors, rounds = self.vectors, sum(block.rounds for block in self.whole)
        most = max(self.limits.vectors // 16, 2 * added.vectors)
        while len(self.whole) > 1 and gone <= most:
            if vectors <= self.limits.vectors and rounds <= self.limits.rounds:
                break
            bared = self._strip()
            gone, vectors = gone + bared.vectors, vectors - bared.vectors
            rounds -= bared.rounds
        return bared

    def _strip(self) -> Block:
        """Move the oldest whole block to the bare ones; return it as it was."""
        oldest = self.whole.popleft()
        self.add_bare(replace(oldest, vectors=0))
        return oldest


def read(db: sqlite3.Connection, limits: Retention) -> Kept:
    """Count what a file keeps: once after it was opened."""
    kept, anchors = Kept(limits), runs.anchors(db)
    saved, events = iter(states.sizes(db)), journal.sizes(db)
    state, event = next(saved, None), next(events, None)
    for run, number, position, report in runs.closed(db):
        vectors, facts = 0, _ROUND + report
        while event is not None and event[0] <= position:
            vectors, facts = vectors + event[1], facts + _EVENT + event[2]
            event = next(events, None)
        while state is not None and state[0] <= position:
            vectors += state[1] if state[0] > anchors[run] else 0
            state = next(saved, None)
        if position > anchors[run]:
            kept.add(Block(run, position, number, 1, vectors, facts))
        else:
            kept.add_bare(Block(run, position, number, 1, 0, facts))
    kept.unclosed = (state[1] if state else 0) + sum(size for _, size in saved)
    return kept


def keep(db: sqlite3.Connection, kept: Kept, closed: Version, position: int, report: int) -> None:
    """Count a round that closed just now and drop what is over budget, in this transaction.

    Args:
        db: In a transaction that saved the state after the round.
        kept: What the file kept before; changed.
        closed: The round.
        position: Journal position of the event that closed it.
        report: Bytes of its report.
    """
    before = kept.whole or kept.bare
    after = before[-1].position if before else 0
    vectors, facts, kept.unclosed = kept.unclosed, _ROUND + report, 0
    for _, vector, told in journal.sizes(db, after, position):
        vectors, facts = vectors + vector, facts + _EVENT + told
    added = Block(closed.run, position, closed.round, 1, vectors, facts)
    kept.add(added)
    bared, dropped = kept.due(added)
    if bared is not None:
        _strip(db, bared)
    if dropped is not None:
        _drop(db, dropped)


def horizon(db: sqlite3.Connection) -> Horizon:
    """Return what was dropped so far."""
    return Horizon(runs.anchors(db), journal.first(db), dict(journal.pruned(db)))


def used(db: sqlite3.Connection) -> Mapping[str, int]:
    """Return the bytes that are kept of each kind, counted anew."""
    vectors = facts = 0
    for _, vector, told in journal.sizes(db):
        vectors, facts = vectors + vector, facts + _EVENT + told
    reports = sum(_ROUND + report for *_, report in runs.closed(db))
    return {
        "vectors": vectors + sum(size for _, size in states.sizes(db)),
        "journal": facts + reports,
    }


def _strip(db: sqlite3.Connection, block: Block) -> None:
    """Move anchors up to a block's end; vectors before it go, and states that only led there."""
    for run, position in _anchored(db, block):
        runs.lift_anchor(db, run, position)
        states.forget(db, run, position)
    journal.forget(db, block.position)


def _anchored(db: sqlite3.Connection, block: Block) -> Iterator[tuple[int, int]]:
    """Yield the runs whose anchor rises: this one, and older ones, to their last state."""
    for run, anchor, upto in runs.reaches(db):
        wanted = min(block.position, upto) if run == block.run else upto
        if run <= block.run and anchor < wanted:
            yield run, wanted


def _drop(db: sqlite3.Connection, block: Block) -> None:
    """Delete a block's events and rounds; of each device its highest number stays, and a count."""
    journal.drop(db, block.position)
    runs.drop_closed(db, block.run, block.position)
    states.drop_before(db, block.run)
