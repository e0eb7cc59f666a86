"""Answers that perish: put together from their pieces, judged, and forgotten with their turn.

The intake proves who said a piece; here is whether it is wanted now, and whether it is whole. What
is refused is counted and answered with nothing: a round does not wait for it, and an answer to each
of eight pieces would be an amplifier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edge_sdk.wire.contract import method
from edge_sdk.wire.errors import Reason, Refused
from edge_sdk.wire.protocol import messages
from edge_sdk.wire.protocol.array_fragments import Sheet

Wants = Callable[[method.Signal, tuple[int, ...]], bool]
"""Whether an answer of this sender, turn and shape may come now."""

_NOTHING: Any = np.zeros(0, np.float32)


def nothing_wanted(_said: method.Signal, _shape: tuple[int, ...]) -> bool:
    """Want nothing: no round has turns that perish."""
    return False


@dataclass(slots=True)
class SignalAssembler:
    """What is being put together: at most one array for each question and device.

    Attributes:
        contract: Of the run's method.
        wants: What may come now.
    """

    contract: Mapping[str, method.Ask]
    wants: Wants = nothing_wanted
    _sheets: dict[tuple[str, str], tuple[tuple[object, ...], Sheet]] = field(default_factory=dict)

    def take(self, device: str, said: messages.SignalMessage) -> method.Signal | None:
        """Take a piece in; return the whole answer when this was its last.

        Raises:
            Refused: UNKNOWN_KIND for what is no such question of the method; BAD_SCALAR; MALFORMED
                for an answer without a number that is needed; WRONG_ENCODING; LATE if it is not
                wanted (any more); BAD_TENSOR, and what came of it so far is forgotten.
        """
        ask = self.contract.get(said.ask)
        if ask is None or ask.up is not method.Up.SIGNAL:
            raise Refused(Reason.UNKNOWN_KIND, f"ask {said.ask!r}")
        _check_numbers(said, ask)
        answer = method.Signal(
            device,
            said.round,
            said.ask,
            said.step,
            _NOTHING,
            {name: float(value) for name, value in said.vals.items()},
            said.attempt,
        )
        if not self.wants(answer, said.shape):
            raise Refused(Reason.LATE, f"{said.ask} {said.round}.{said.attempt}.{said.step}")
        return self._added(device, said, answer) if said.shape else answer

    def forget(self, device: str) -> None:
        """Drop what a device has sent of answers that are not whole."""
        for key in [key for key in self._sheets if key[0] == device]:
            del self._sheets[key]

    def _added(
        self, device: str, said: messages.SignalMessage, answer: method.Signal
    ) -> method.Signal | None:
        if said.enc == "i4":
            raise Refused(Reason.WRONG_ENCODING, "i4")
        key = device, said.ask
        about = (said.round, said.attempt, said.step, said.enc, said.shape)
        known, sheet = self._sheets.get(key, (None, None))
        if sheet is None or known != about:
            sheet = Sheet(said.enc, said.shape)
            self._sheets[key] = (about, sheet)
        try:
            sheet.add(said.off, said.num, said.blob)
        except Refused:
            del self._sheets[key]
            raise
        if not sheet.is_complete:
            return None
        del self._sheets[key]
        return method.Signal(
            device,
            answer.round,
            answer.ask,
            answer.step,
            sheet.array(),
            answer.values,
            answer.attempt,
        )


def _check_numbers(said: messages.SignalMessage, ask: method.Ask) -> None:
    declared = {number.name: number for number in ask.report}
    for name, value in said.vals.items():
        if name not in declared or not declared[name].admits(value):
            raise Refused(Reason.BAD_SCALAR, f"{name} = {value}")
    for number in ask.report:
        if number.needed and number.name not in said.vals:
            raise Refused(Reason.MALFORMED, f"{said.ask} without {number.name}")
