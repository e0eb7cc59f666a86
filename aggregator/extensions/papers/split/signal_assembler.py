"""Assemble transient signals from their fragments, check them, and drop them after their step.

The message ingress verifies the sender; this module checks that a signal is wanted now and is
complete. A refused fragment is counted and not answered: no round waits for it, and a reply to
each of eight fragments would amplify traffic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aggregator.ingress.message_ingress import Signals
from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol import messages
from edge_sdk.protocol.array_fragments import Sheet
from edge_sdk.protocol.contract import method

Wants = Callable[[method.Signal, tuple[int, ...]], bool]
"""Predicate: whether a signal of this sender, step and shape is wanted now."""

_NOTHING: Any = np.zeros(0, np.float32)


def nothing_wanted(_signal: method.Signal, _shape: tuple[int, ...]) -> bool:
    """Refuse every signal: no split round is open."""
    return False


@dataclass
class SignalAssembler(Signals):
    """Partial signals: at most one array for each question and device."""

    contract: Mapping[str, method.Ask]  # contract of the run's method
    wants: Wants = nothing_wanted  # Predicate of the signals wanted now
    _sheets: dict[tuple[str, str], tuple[tuple[object, ...], Sheet]] = field(default_factory=dict)

    def assemble(self, device: str, fragment: messages.SignalMessage) -> method.Signal | None:
        """Add a fragment; return the whole signal if it is complete, else None.

        Raises:
            Refused: UNKNOWN_KIND for a question that the method does not have; BAD_SCALAR;
                MALFORMED for a missing required scalar; WRONG_ENCODING; LATE if the signal is not
                wanted now; BAD_TENSOR, which drops the fragments received so far.
        """
        ask = self.contract.get(fragment.ask)
        if ask is None or ask.up is not method.Up.SIGNAL:
            raise Refused(Reason.UNKNOWN_KIND, f"ask {fragment.ask!r}")
        _check_numbers(fragment, ask)
        answer = method.Signal(
            device,
            fragment.round,
            fragment.ask,
            fragment.step,
            _NOTHING,
            {name: float(value) for name, value in fragment.vals.items()},
            fragment.attempt,
        )
        if not self.wants(answer, fragment.shape):
            raise Refused(
                Reason.LATE, f"{fragment.ask} {fragment.round}.{fragment.attempt}.{fragment.step}"
            )
        return self._added(device, fragment, answer) if fragment.shape else answer

    def forget(self, device: str) -> None:
        """Drop the fragments of a device."""
        for key in [key for key in self._sheets if key[0] == device]:
            del self._sheets[key]

    def _added(
        self, device: str, fragment: messages.SignalMessage, answer: method.Signal
    ) -> method.Signal | None:
        if fragment.enc == "i4":
            raise Refused(Reason.WRONG_ENCODING, "i4")
        key = device, fragment.ask
        about = (fragment.round, fragment.attempt, fragment.step, fragment.enc, fragment.shape)
        known, sheet = self._sheets.get(key, (None, None))
        if sheet is None or known != about:
            sheet = Sheet(fragment.enc, fragment.shape)
            self._sheets[key] = (about, sheet)
        try:
            sheet.add(fragment.off, fragment.num, fragment.blob)
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


def _check_numbers(signal: messages.SignalMessage, ask: method.Ask) -> None:
    declared = {number.name: number for number in ask.report}
    for name, value in signal.vals.items():
        if name not in declared or not declared[name].admits(value):
            raise Refused(Reason.BAD_SCALAR, f"{name} = {value}")
    for number in ask.report:
        if number.needed and number.name not in signal.vals:
            raise Refused(Reason.MALFORMED, f"{signal.ask} without {number.name}")
