"""Define what an operator's pages read of the database: devices, updates, rounds and commands, in short."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceSummary:
    """One device in a list.

    Attributes:
        id: Id of the device.
        state: ``enrolled``, ``quarantined`` or ``revoked``.
        why: Reason for another state than enrolled.
        generation: Number of its enrolments.
        keys: Public keys that may sign for it, hex.
        spent: Releases that the aggregator has counted.
        labels: Pairs of name and value, sorted.
    """

    id: str
    state: str
    why: str
    generation: int
    keys: tuple[str, ...]
    spent: int
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class SettledUpdate:
    """One settled update in short: what a list of devices needs of it.

    Attributes:
        run: Number of the run.
        round: Round that it answered.
        code: Verdict, a ``Reason``.
    """

    run: int
    round: int
    code: int


@dataclass(frozen=True, slots=True)
class DeviceTrialDay:
    """One day of a device in the newest rollout."""

    day: int
    is_lost: bool
    is_serving: bool


@dataclass(frozen=True, slots=True)
class DeviceFilter:
    """Selection of devices.

    Attributes:
        text: Part of the id; empty selects all.
        label: ``name`` or ``name=value`` of a label; empty selects all.
        state: A state; empty selects all.
    """

    text: str = ""
    label: str = ""
    state: str = ""


@dataclass(frozen=True, slots=True)
class ClosedRound:
    """A closed round without the lists of its devices.

    Attributes:
        round: Number of the round.
        version: Version of the model after it.
        moved: True if the model changed.
        time: Server time in Unix milliseconds.
        devices: Number of devices whose update was used.
        dropped: Number of devices that the rule left out.
        loss: Mean of the reported losses, or None.
        step: Length of the model's change, or None.
        seconds: Duration, or None.
        received: Payload bytes that the daemon received while it was open, or None.
        sent: Payload bytes that the daemon sent meanwhile, or None.
        why: Reason that nothing moved; empty if it did.
    """

    round: int
    version: int
    moved: bool
    time: int
    devices: int
    dropped: int
    loss: float | None
    step: float | None
    seconds: float | None
    received: float | None
    sent: float | None
    why: str


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One settled update of a device.

    Attributes:
        run: Number of the run.
        round: Round that it answered.
        life: Life of its number.
        seq: Sequence number within the life.
        code: Verdict, a ``Reason``.
        time: Server time at which the round closed, Unix milliseconds; 0 if it is open or unknown.
        dropped: Reason for which the rule left it out; empty if it did not.
    """

    run: int
    round: int
    life: int
    seq: int
    code: int
    time: int = 0
    dropped: str = ""


@dataclass(frozen=True, slots=True)
class CommandRow:
    """One command to a device; ``code`` is None until the device has receipted it."""

    device: str
    num: int
    op: str
    args: Mapping[str, float]
    code: int | None
