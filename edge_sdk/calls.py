"""Perishable questions: put together from their rows, and laid ready in the order they came.

Nothing here is kept or asked for again. A question of a later turn lets go of what is not whole.
"""

from __future__ import annotations

from collections import deque

from edge_sdk.downlink import Seen, Wanted, judge_numbers
from edge_sdk.wire import messages as m
from edge_sdk.wire.errors import Reason, Refused
from edge_sdk.wire.method import Ask, Task
from edge_sdk.wire.rows import Sheet

MOST = 256
"""Questions that wait at most: who has more is behind, and the newest count."""


class Calls:
    """What was asked and perishes, for one device.

    Args:
        to: The device's id.

    Attributes:
        waiting: Whole questions, oldest first.
    """

    def __init__(self, to: str) -> None:
        """Begin with nothing asked."""
        self._to = to
        self._sheets: dict[str, tuple[tuple[object, ...], Sheet]] = {}
        self.waiting: deque[Task] = deque(maxlen=MOST)

    def hear(self, said: m.Task, seen: Seen, wanted: Wanted) -> None:
        """Take one message in; the question is ready when its last row is here.

        Raises:
            Refused: As ``judge``; BAD_TENSOR for a scalar that is not finite.
        """
        ask = judge(said, seen, wanted)
        if not said.shape:
            self.waiting.append(self._task(said, {}))
            return
        about = (said.turn, said.enc, said.shape)
        known, sheet = self._sheets.get(said.ask, (None, None))
        if sheet is None or known != about:
            sheet = Sheet(said.enc, said.shape)
            self._sheets[said.ask] = (about, sheet)
        sheet.add(said.off, said.num, said.blob)
        if sheet.is_complete:
            del self._sheets[said.ask]
            self.waiting.append(self._task(said, {ask.down[0]: sheet.array()}))

    def forget(self) -> None:
        """Let go of everything: another run is in force."""
        self._sheets.clear()
        self.waiting.clear()

    def _task(self, said: m.Task, arrays: dict[str, object]) -> Task:
        return Task(
            to=self._to,
            round=said.round,
            ask=said.ask,
            step=said.step,
            base=said.base,
            attempt=said.attempt,
            values=said.vals,
            arrays=arrays,  # type: ignore[arg-type]  # every value is an array
        )


def is_perishable(said: m.Task, wanted: Wanted | None) -> bool:
    """Whether a task is one that perishes, by the contract this device is set up for."""
    ask = wanted.contract.get(said.ask) if wanted is not None else None
    return ask is not None and ask.perishable


def judge(said: m.Task, seen: Seen, wanted: Wanted) -> Ask:
    """Refuse a perishable question that does not fit; return what it may carry.

    Raises:
        Refused: WRONG_RUN; WRONG_SPEC; MALFORMED for an array where the contract has none;
            BAD_SCALAR.
    """
    if said.run != seen.run:
        raise Refused(Reason.WRONG_RUN, f"run {said.run}, expected {seen.run}")
    if said.spec != wanted.spec:
        raise Refused(Reason.WRONG_SPEC, said.spec.hex())
    ask = wanted.contract[said.ask]
    if said.shape and not ask.down:
        raise Refused(Reason.MALFORMED, f"ask {said.ask!r} brings no array")
    judge_numbers(said.vals, ask, wanted.max_steps)
    return ask
