"""Check whether an update may reach a method: the whole policy, without network or clock.

The sender is authenticated and the form is valid (``envelope.unseal``, ``codec.decode``), and the
update was not settled before (the sequence ledger checks that). The result is a finite float64
vector within the run's limits, or a final reason. Robust rules run afterwards, on admitted updates
only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol import messages
from edge_sdk.protocol.codec import ENCODINGS, unpack_tensor
from edge_sdk.protocol.contract import method


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a run for every sender; fixed for the whole run."""

    spec: bytes  # layout digest of the shared vector
    size: int  # number of its scalars, the protocol's P
    contract: method.Ask  # ask of the open round: part and numbers of the answer
    further: tuple[method.Ask, ...] = ()  # other asks of the method, with other parts
    max_norm: float = np.inf  # largest Euclidean norm
    encs: tuple[str, ...] = ("f4",)  # encodings the run allows
    max_staleness: int | None = None  # versions behind; None = synchronous: exactly the open round
    n_cap: int = 1_000_000_000  # largest plausible sample count


@dataclass(frozen=True, slots=True)
class OpenRound:
    """The run, round and version that are open now."""

    run: int
    round: int
    version: int
    is_open: bool = True  # False between a round's close and the next opening: updates are late


def admit_update(
    update: messages.UpdateMessage, *, sender: str, limits: Limits, round_state: OpenRound
) -> method.Update:
    """Return the update for the method, or refuse it with a final reason.

    The order of the checks is part of the protocol: the first reason that applies is receipted.

    Args:
        sender: Sender as the envelope proves it.
        round_state: Run, round and version open at this moment.

    Raises:
        Refused: With a final reason: WRONG_RUN; WRONG_SPEC; WRONG_ENCODING; WRONG_SIZE;
            NOT_FINITE; NORM_EXCEEDED; BAD_SCALAR; FROM_FUTURE, TOO_STALE or LATE.
    """
    if update.run != round_state.run:
        raise Refused(Reason.WRONG_RUN, f"run {update.run}, now {round_state.run}")
    if update.spec != limits.spec:
        raise Refused(Reason.WRONG_SPEC, update.spec.hex())
    ask = _answered(update, limits)
    vector = _vector(update, limits)
    _check_numbers(update, ask, limits.n_cap)
    _check_turn(update, limits, round_state)
    return method.Update(
        sender=sender,
        round=update.round,
        base=update.base,
        vector=vector,
        values={**update.vals, "n": float(update.n)},
        check=update.check or b"",
    )


def _answered(update: messages.UpdateMessage, limits: Limits) -> method.Ask:
    asks = (limits.contract, *limits.further)
    for ask in asks:
        if update.part == ask.up.value:
            return ask
    parts = " or ".join(repr(ask.up.value) for ask in asks)
    raise Refused(Reason.WRONG_ENCODING, f"part {update.part!r}, expected {parts}")


def _vector(update: messages.UpdateMessage, limits: Limits) -> NDArray[np.float64]:
    if update.enc not in limits.encs:
        raise Refused(Reason.WRONG_ENCODING, f"{update.enc!r}; allowed: {', '.join(limits.encs)}")
    vector = unpack_tensor(update.blob, update.enc, limits.size)
    norm = float(np.linalg.norm(vector))
    most = limits.max_norm * ENCODINGS[update.enc].most_longer
    if not norm <= most:
        raise Refused(Reason.NORM_EXCEEDED, f"{norm:.6g}, at most {most:.6g}")
    return vector


def _check_numbers(update: messages.UpdateMessage, ask: method.Ask, most: int) -> None:
    if update.n > most:
        raise Refused(Reason.BAD_SCALAR, f"n = {update.n}, at most {most}")
    declared = {number.name: number for number in ask.report}
    for name, value in update.vals.items():
        if name not in declared or not declared[name].admits(value):
            raise Refused(Reason.BAD_SCALAR, f"{name} = {value}")


def _check_turn(update: messages.UpdateMessage, limits: Limits, now: OpenRound) -> None:
    """Check base and round. A future base is final: it is forged, or the server was restored.

    An update for an older round of the *same* version is LATE (that round was abandoned), one for
    an older version TOO_STALE.
    """
    if update.base > now.version or update.round > now.round:
        raise Refused(
            Reason.FROM_FUTURE,
            f"base {update.base}, round {update.round}; now {now.version}, {now.round}",
        )
    behind = now.version - update.base
    if limits.max_staleness is not None:
        if behind > limits.max_staleness:
            raise Refused(Reason.TOO_STALE, f"{behind} versions behind")
        return
    if behind:
        raise Refused(Reason.TOO_STALE, f"base {update.base}, now {now.version}")
    if update.round != now.round or not now.is_open:
        raise Refused(Reason.LATE, f"round {update.round}, now {now.round}")
