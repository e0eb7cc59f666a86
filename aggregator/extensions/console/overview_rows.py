"""Define the rows of an operator's pages: devices, updates, rounds and commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceSummary:
    """One device in a list."""

    id: str
    state: str  # ``enrolled``, ``quarantined`` or ``revoked``
    why: str  # reason for another state than enrolled
    generation: int
    keys: tuple[str, ...]  # public keys that may sign for it, hex
    spent: int  # releases that the aggregator has counted
    labels: tuple[tuple[str, str], ...] = ()  # pairs of name and value, sorted


@dataclass(frozen=True, slots=True)
class SettledUpdate:
    """Summary of one settled update, for a list of devices."""

    run: int
    round: int
    code: int  # verdict, a ``Reason``


@dataclass(frozen=True, slots=True)
class DeviceFilter:
    """Selection of devices."""

    text: str = ""  # part of the id; empty selects all
    label: str = ""  # ``name`` or ``name=value`` of a label; empty selects all
    state: str = ""  # a state; empty selects all


@dataclass(frozen=True, slots=True)
class ClosedRound:
    """A closed round without the lists of its devices."""

    round: int
    version: int  # version of the model after it
    moved: bool  # true if the model changed
    time: int  # server time in Unix milliseconds
    devices: int  # number of devices whose update was used
    dropped: int  # number of devices that the rule left out
    loss: float | None  # mean of the reported losses, or None
    step: float | None  # length of the model's change, or None
    seconds: float | None  # duration, or None
    received: float | None  # payload bytes that the daemon received while it was open, or None
    sent: float | None  # payload bytes that the daemon sent meanwhile, or None
    why: str  # reason that nothing moved; empty if it did


@dataclass(frozen=True, slots=True)
class RoundCounts:
    """Closed rounds of one slot of time."""

    slot: int  # number of the slot: its start divided by its length
    closed: int
    moved: int
    last: int  # the newest of these, or else the newest of all


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One settled update of a device."""

    run: int
    round: int
    life: int
    seq: int  # sequence number within the life
    code: int  # verdict, a ``Reason``
    # server time at which the round closed, Unix milliseconds; 0 if it is open or unknown
    time: int = 0
    dropped: str = ""  # reason for which the rule left it out; empty if it did not


@dataclass(frozen=True, slots=True)
class CommandRow:
    """One command to a device; ``code`` is None until the device has receipted it."""

    device: str
    num: int
    op: str
    args: Mapping[str, float]
    code: int | None


@dataclass(frozen=True, slots=True)
class SuspectRow:
    """Count of the recent rounds in which a rule left a device out."""

    device: str
    excluded: int  # number of rounds in which it was left out or had weight 0
    rounds: int
    last: int  # last round in which it was left out
    reasons: tuple[str, ...]
    when: tuple[int, ...] = ()  # rounds in which it was left out, newest first
