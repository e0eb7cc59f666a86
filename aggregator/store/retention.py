"""Delete the oldest vectors, states and events, so that each kind stays within its budget.

A checkpoint is the state of a run after a closed round; ``runs.anchor`` is the oldest one kept.
Vectors are deleted only up to a committed checkpoint. The remaining events can therefore always be
replayed, and an audit begins at the anchor. Events are deleted after their vectors.

Closed rounds are counted in blocks of neighbouring ones, a few dozen per budget, so that memory
does not grow with the journal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from aggregator.store.journal import Journal
from aggregator.store.runs import Runs, States
from aggregator.store.transactions import Transactions
from aggregator.store.types import Horizon, Retention, Version

_BLOCKS = 64  # a block is full at 1/64 of a budget
_EVENT = 150  # bytes of an event's row and of its two index entries, without facts and names
_ROUND = 90  # bytes of a closed round's row without its report


@dataclass(frozen=True, slots=True)
class Block:
    """Sizes of neighbouring closed rounds of one run."""

    run: int
    position: int  # journal position of the event that closed the last round
    first: int
    rounds: int = 0
    vectors: int = 0  # size of their vectors and of their states, bytes
    facts: int = 0  # size of their other journal data, bytes

    def joined(self, newer: Block) -> Block:
        """Return the union with the next newer block."""
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
    """Sizes of a file's data, by blocks of closed rounds."""

    limits: Retention
    bare: deque[Block] = field(default_factory=deque)  # blocks without vectors, oldest first
    # blocks that an audit can recompute, oldest first
    whole: deque[Block] = field(default_factory=deque)
    unclosed: int = 0  # size of states written since the last round closed, bytes

    def add(self, one: Block) -> None:
        """Add a closed round."""
        last = self.whole[-1] if self.whole else None
        if last is not None and last.run == one.run and not last.is_full(self.limits):
            self.whole[-1] = last.joined(one)
        else:
            self.whole.append(one)

    def add_bare(self, one: Block) -> None:
        """Add a closed round without vectors."""
        last = self.bare[-1] if self.bare else None
        if last is not None and last.run == one.run and not last.is_full(self.limits):
            self.bare[-1] = last.joined(one)
        else:
            self.bare.append(one)

    @property
    def vectors(self) -> int:
        """Return the size of vectors and states, in bytes."""
        return sum(block.vectors for block in self.whole)

    @property
    def facts(self) -> int:
        """Return the size of events without vectors, in bytes."""
        return sum(block.facts for block in (*self.bare, *self.whole))

    @property
    def since(self) -> int:
        """Return the last round of the newest run that cannot be recomputed; 0 if all can."""
        newest = self.whole[-1].run if self.whole else 0
        return next((block.first - 1 for block in self.whole if block.run == newest), 0)

    def due(self, added: Block) -> tuple[Block | None, Block | None]:
        """Remove excess blocks; return the last without vectors, and the last without events.

        One call removes about a sixteenth of the budget, or twice the size just added if that is
        more. Every commit stays short, and the file still comes within its budget.

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
        oldest = self.whole.popleft()
        self.add_bare(replace(oldest, vectors=0))
        return oldest


class RetainedData:
    """Extent and sizes of the kept journal, states and closed rounds."""

    def __init__(
        self, transactions: Transactions, journal: Journal, runs: Runs, states: States
    ) -> None:
        self._journal, self._runs, self._states = journal, runs, states
        self._kept: Kept | None = None
        transactions.on_rollback.append(self._forget)

    def _forget(self) -> None:
        """Forget the sizes, which must be measured again."""
        self._kept = None

    @contextmanager
    def measured(self, limits: Retention | None) -> Iterator[Kept | None]:
        """Yield the sizes under budgets, None without; measure again after a failed transaction."""
        if limits is not None and (self._kept is None or self._kept.limits != limits):
            self._kept = self._read(limits)
        try:
            yield self._kept if limits is not None else None
        except BaseException:
            self._forget()
            raise

    @property
    def kept(self) -> Mapping[str, int]:
        """Return the sizes as of the last closed round, and the round after which an audit begins.

        Read from memory; empty before the first closed round.
        """
        kept = self._kept
        if kept is None:
            return {}
        return {"vectors": kept.vectors, "journal": kept.facts, "audit after": kept.since}

    def _read(self, limits: Retention) -> Kept:
        """Measure the contents of a file, once after it was opened."""
        kept, anchors = Kept(limits), self._runs.anchors()
        saved, events = iter(self._states.sizes()), self._journal.sizes()
        state, event = next(saved, None), next(events, None)
        for run, number, position, report in self._runs.closed():
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

    def keep(self, kept: Kept, closed: Version, position: int, report: int) -> None:
        """Add a round that just closed, and delete the excess over the budgets.

        Args:
            kept: Sizes before the round; changed in place.
            position: Journal position of the event that closed it.
            report: Size of its report, bytes.
        """
        before = kept.whole or kept.bare
        after = before[-1].position if before else 0
        vectors, facts, kept.unclosed = kept.unclosed, _ROUND + report, 0
        for _, vector, report_size in self._journal.sizes(after, position):
            vectors, facts = vectors + vector, facts + _EVENT + report_size
        added = Block(closed.run, position, closed.round, 1, vectors, facts)
        kept.add(added)
        bared, dropped = kept.due(added)
        if bared is not None:
            self._strip(bared)
        if dropped is not None:
            self._drop(dropped)

    def horizon(self) -> Horizon:
        """Return the extent of the deleted data."""
        return Horizon(self._runs.anchors(), self._journal.first(), dict(self._journal.pruned()))

    def used(self) -> Mapping[str, int]:
        """Measure and return the size of each kind, in bytes."""
        vectors = facts = 0
        for _, vector, report_size in self._journal.sizes():
            vectors, facts = vectors + vector, facts + _EVENT + report_size
        reports = sum(_ROUND + report for *_, report in self._runs.closed())
        return {
            "vectors": vectors + sum(size for _, size in self._states.sizes()),
            "journal": facts + reports,
        }

    def _strip(self, block: Block) -> None:
        for run, position in self._anchored(block):
            self._runs.lift_anchor(run, position)
            self._states.forget(run, position)
        self._journal.forget(block.position, self._held(block))

    def _anchored(self, block: Block) -> Iterator[tuple[int, int]]:
        """Yield each run whose anchor moves, with its new anchor.

        A finished run goes to its last state. One that continues beside the block's run goes to the
        state after the last round that it closed by then; its events after that are held.
        """
        live = self._runs.live()
        for run, anchor, upto in self._runs.reaches():
            wanted = min(block.position, upto)
            if run != block.run and (run in live or upto > block.position):
                wanted = self._runs.last_closing(run, wanted)
            if anchor < wanted:
                yield run, wanted

    def _held(self, block: Block) -> dict[int, int]:
        live = self._runs.live()
        return {
            run: anchor
            for run, anchor, upto in self._runs.reaches()
            if run != block.run
            and anchor < block.position
            and (run in live or upto > block.position)
        }

    def _drop(self, block: Block) -> None:
        held, live = self._held(block), self._runs.live()
        self._journal.drop(block.position, held)
        self._runs.drop_closed(block.position, held)
        for run, _, upto in self._runs.reaches():
            if run not in live and run != block.run and upto <= block.position:
                self._states.drop(run)
