"""What a device can spare, by class: memory, flash, bytes on the link, when to learn and to talk.

Pure: the configuration's section, the numbers of the classes, and what follows from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from edge_sdk.app.settings import Duration, seconds
from edge_sdk.wire.schema import Between, Length, Matches

Window = Annotated[str, Matches(r"([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d")]
"""Two times of day, UTC: ``01:00-05:30``. One that ends before it begins goes over midnight."""

Bytes = Annotated[int, Between(0, 10**15)]

_DAY = 86_400


@dataclass(frozen=True, slots=True)
class LimitsSection:
    """What this device can spare. A class fills in what is left out; without one, nothing is."""

    kind: Literal["", "A", "B", "C"] = ""  # edge server, small 64-bit Linux, 32-bit Linux
    memory: Annotated[int, Between(32, 1_048_576)] | None = None  # MiB of data (RLIMIT_DATA)
    flash: Bytes | None = None  # bytes written a day, as the kernel counts them
    link: Bytes | None = None  # payload bytes a day, both ways
    readings: Bytes | None = None  # bytes of flash that readings and their noise may take
    wake: Duration | None = None  # time a day spent on learning and on being heard
    commit_after: Duration | None = None  # readings wait in memory so long
    upload: Annotated[tuple[Window, ...], Length(0, 8)] = ()  # rounds are answered only then
    learn: Literal["always", "idle", "mains"] = "always"  # idle: little load; mains: not on battery


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """A section with its class filled in. None is no limit.

    Attributes:
        memory: Bytes of data the process may have.
        flash: Bytes a day it may have written.
        link: Payload bytes a day, both ways.
        wake: Seconds a day that it may learn, or wait on a link for the receipt of what it learned.
        readings: Bytes of flash for readings, and for the noise on them.
        commit_after: Seconds that readings wait in memory; what a power cut may take.
    """

    memory: int | None = None
    flash: int | None = None
    link: int | None = None
    wake: float | None = None
    commit_after: float = 60.0
    readings: int | None = None


CLASSES: Final[Mapping[str, ResourceLimits]] = {
    "": ResourceLimits(),
    "A": ResourceLimits(flash=1_000_000_000, readings=256_000_000),
    "B": ResourceLimits(128 * 2**20, 50_000_000, 1_000_000, 1440.0, readings=32_000_000),
    "C": ResourceLimits(96 * 2**20, 20_000_000, 1_000_000, 1440.0, 300.0, readings=16_000_000),
}
"""An edge server, a 64-bit Linux board (the usual), a 32-bit controller without onnxruntime.

The wake time is 48 times half a minute: a round on 20 kB/s, every half hour.
"""


def means_of(section: LimitsSection) -> ResourceLimits:
    """Return what is in force.

    >>> means_of(LimitsSection("C", link=5)).link, means_of(LimitsSection("C")).commit_after
    (5, 300.0)
    """
    usual = CLASSES[section.kind]
    wake, after = section.wake, section.commit_after
    return ResourceLimits(
        usual.memory if section.memory is None else section.memory * 2**20,
        usual.flash if section.flash is None else section.flash,
        usual.link if section.link is None else section.link,
        usual.wake if wake is None else seconds(wake),
        usual.commit_after if after is None else seconds(after),
        usual.readings if section.readings is None else section.readings,
    )


def is_open(windows: tuple[str, ...], wall: float) -> bool:
    """Whether uploads may leave at a time in Unix seconds; always, where no window is named.

    >>> night = ("22:00-02:00",)
    >>> [is_open(night, hour * 3600.0) for hour in (21, 23, 1, 2)], is_open((), 0.0)
    ([False, True, True, False], True)
    """
    now = wall % _DAY
    for window in windows:
        begin, end = (3600 * int(t[:2]) + 60 * int(t[3:]) for t in window.split("-"))
        if (begin <= now < end) if begin <= end else (now >= begin or now < end):
            return True
    return not windows


@dataclass(frozen=True, slots=True)
class MachineState:
    """How the machine is now.

    Attributes:
        wall: Unix seconds.
        load: Processes that want to run, by processor.
        on_battery: Whether it runs from one; None where it cannot say.
    """

    wall: float
    load: float = 0.0
    on_battery: bool | None = None


IDLE: Final = 0.5
"""Below so many waiting processes by processor, a machine is idle."""


def held_by(
    section: LimitsSection,
    present: MachineState,
    *,
    flash_spent: bool = False,
    wake_spent: bool = False,
) -> str:
    """Return why nothing is learned or answered now; empty if nothing forbids it.

    A machine that cannot say whether it is on battery is on mains: it has no battery.

    >>> held_by(LimitsSection(learn="mains"), MachineState(0.0, on_battery=True))
    'on battery'
    """
    if flash_spent or wake_spent:
        return "flash" if flash_spent else "wake time"
    if not is_open(section.upload, present.wall):
        return "outside the upload windows"
    if section.learn == "mains" and present.on_battery:
        return "on battery"
    return "busy" if section.learn == "idle" and present.load >= IDLE else ""


def lesser(one: int | None, other: int | None) -> int | None:
    """Return the stricter of two limits.

    >>> lesser(None, 5), lesser(7, 5), lesser(None, None)
    (5, 5, None)
    """
    known = [limit for limit in (one, other) if limit is not None]
    return min(known, default=None)
