"""Coalition of Byzantine devices: the honest updates of a round, recorded inside the simulator.

The coalition is in the simulator's process. It sends no messages, and it does not change the
behaviour of honest devices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edge_sdk.protocol.contract.method import ALL, Task
from firmware_sim.attacks.attack_context import Row

KEPT = 4  # rounds kept of each device: older ones are not needed
ALONE = 2**40  # first round number of local rounds; nothing of them is sent


@dataclass(slots=True)
class Coalition:
    """Shared knowledge of the Byzantine devices.

    Where a task goes to all devices, "the same round" is literal. Where a server sends tasks one
    device at a time, no two devices share a round; the latest update of each device is used.
    """

    honest: frozenset[str]  # ids of the honest devices
    byzantine: frozenset[str]  # ids of the Byzantine devices
    patience: float  # seconds that a Byzantine device waits for the honest updates of a round
    clock: Callable[[], float]  # monotonic seconds
    _updates: dict[str, dict[int, Row]] = field(default_factory=dict)
    _wait_begun: dict[tuple[str, int], float] = field(default_factory=dict)
    _colluding: dict[int, Row] = field(default_factory=dict)
    _silent: set[str] = field(default_factory=set)

    def record(self, device: str, of_round: int, vector: Row) -> None:
        if of_round >= ALONE:
            return
        rounds = self._updates.setdefault(device, {})
        rounds[of_round] = np.array(vector, np.float64)
        for old in sorted(rounds)[:-KEPT]:
            del rounds[old]
        self._silent.discard(device)

    def may_answer(self, device: str, task: Task) -> bool:
        """Return True if the awaited updates are recorded, or the wait has timed out.

        A device whose updates timed out is not waited for again until its next update.
        """
        missing = self._missing(task)
        if not missing:
            return True
        begun = self._wait_begun.setdefault((device, task.round), self.clock())
        if self.clock() - begun < self.patience:
            return False
        self._silent |= missing
        return True

    def rows(self, task: Task) -> NDArray[np.float64] | None:
        """Return the honest updates for a task, by id, shape ``(h, P)``; None if there is none."""
        known = [self._of(name, task) for name in sorted(self.honest)]
        known_rows = [row for row in known if row is not None]
        return np.stack(known_rows) if known_rows else None

    def shared_vector(self, of_round: int, vector: Callable[[], Row]) -> Row:
        """Return the one vector of a round; the first caller computes it."""
        if of_round not in self._colluding:
            self._colluding[of_round] = vector()
            for old in sorted(self._colluding)[:-KEPT]:
                del self._colluding[old]
        return self._colluding[of_round]

    def _missing(self, task: Task) -> set[str]:
        return {x for x in self.honest - self._silent if self._of(x, task) is None}

    def _of(self, device: str, task: Task) -> Row | None:
        rounds = self._updates.get(device, {})
        if task.to == ALL:
            return rounds.get(task.round)
        return rounds[max(rounds)] if rounds else None
