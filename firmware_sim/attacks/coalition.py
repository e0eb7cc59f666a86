"""What liars know of the others: the honest answers of a round, overheard inside the simulator.

The coalition lives in the simulator's process. Nothing of it crosses the product's wire, and no
honest device behaves differently because it is overheard.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edge_sdk.wire.contract.method import ALL, Task
from firmware_sim.attacks.attack_context import Row

KEPT = 4
"""Rounds remembered of each device: nobody is asked about older ones."""

ALONE = 2**40
"""Rounds from here on a device set itself; nothing of them is sent."""


@dataclass(slots=True)
class Coalition:
    """The liars' common knowledge.

    Where a question goes to all, "the same round" is meant literally. Where a server asks one
    device at a time, no two devices share a round; liars then go by everybody's latest answer.

    Attributes:
        honest: Ids of the devices that do not lie.
        liars: Ids of those that do.
        patience: Seconds that a liar waits for the honest answers of a round.
        clock: Monotonic seconds.
    """

    honest: frozenset[str]
    liars: frozenset[str]
    patience: float
    clock: Callable[[], float]
    _told: dict[str, dict[int, Row]] = field(default_factory=dict)
    _asked: dict[tuple[str, int], float] = field(default_factory=dict)
    _agreed: dict[int, Row] = field(default_factory=dict)
    _silent: set[str] = field(default_factory=set)

    def tell(self, device: str, of_round: int, vector: Row) -> None:
        """Overhear an honest answer."""
        if of_round >= ALONE:
            return
        rounds = self._told.setdefault(device, {})
        rounds[of_round] = np.array(vector, np.float64)
        for old in sorted(rounds)[:-KEPT]:
            del rounds[old]
        self._silent.discard(device)

    def may_answer(self, liar: str, task: Task) -> bool:
        """Whether a liar knows what it waited for, or has waited long enough.

        Whom patience ran out over is not waited for again until it is heard.
        """
        missing = self._missing(task)
        if not missing:
            return True
        begun = self._asked.setdefault((liar, task.round), self.clock())
        if self.clock() - begun < self.patience:
            return False
        self._silent |= missing
        return True

    def rows(self, task: Task) -> NDArray[np.float64] | None:
        """Return the honest answers to a question, by id, shape ``(h, P)``; None where none is."""
        known = [self._of(name, task) for name in sorted(self.honest)]
        heard = [row for row in known if row is not None]
        return np.stack(heard) if heard else None

    def agree(self, of_round: int, lie: Callable[[], Row]) -> Row:
        """Return the one lie of a round; whoever comes first makes it up."""
        if of_round not in self._agreed:
            self._agreed[of_round] = lie()
            for old in sorted(self._agreed)[:-KEPT]:
                del self._agreed[old]
        return self._agreed[of_round]

    def _missing(self, task: Task) -> set[str]:
        return {x for x in self.honest - self._silent if self._of(x, task) is None}

    def _of(self, device: str, task: Task) -> Row | None:
        rounds = self._told.get(device, {})
        if task.to == ALL:
            return rounds.get(task.round)
        return rounds[max(rounds)] if rounds else None
