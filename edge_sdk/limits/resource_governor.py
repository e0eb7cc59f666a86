"""Enforce the resource limits: record usage, hold back training.

The bytes written are read from Linux (``/proc``); where that is missing, nothing is known and nothing
is held back.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from edge_sdk.limits import DailyQuota, LimitsSection, limits_of

_LOOK_EVERY = 10.0  # seconds between two counts
_SPENT_PATIENCE = 3600.0  # wait of readings in seconds once the daily flash quota is used
_IO = Path("/proc/self/io")
_NONE = DailyQuota()

Deferral = Callable[[LimitsSection, float], str]
"""Section and Unix seconds to the reason for which an extension forbids training now; empty if none."""


class ResourceGovernor:
    """Enforces the limits of a device. ``held`` names the limit that forbids training now."""

    def __init__(
        self,
        section: LimitsSection,
        used: DailyQuota,
        woken: DailyQuota = _NONE,
        *,
        now: float,
        written: Callable[[], int] | None = None,
        deferral: Deferral | None = None,
    ) -> None:
        """Continue from the counters of the previous process."""
        self._section, self.limits, self._deferral = section, limits_of(section), deferral
        self._written = written or bytes_written
        self.flash, self._counted = used, self._written()
        self._looked, self.held = now - _LOOK_EVERY, ""
        self.wake, self._last_call = woken, now
        self._others: tuple[ResourceGovernor, ...] = ()

    def share(self, others: Iterable[ResourceGovernor]) -> None:
        """Count the wake time of the device's other participations against the same limit.

        The bytes written need no sum: the kernel counts those of the whole process.
        """
        self._others = tuple(others)

    def _woken(self, wake: DailyQuota) -> DailyQuota:
        return wake.with_others(other.wake for other in self._others)

    def look(self, now: float, wall: float, server: int | None) -> str:
        """Count resource use, if due; return why training is forbidden, or an empty string."""
        if now - self._looked < _LOOK_EVERY:
            return self.held
        self._looked = now
        written = self._written()
        self.flash = self.flash.use(written - self._counted, server)
        self.wake = self.wake.use(0, server)  # a new day begins with none used
        self._counted = written
        if self.is_flash_spent or self.is_wake_spent:
            self.held = "flash" if self.is_flash_spent else "wake time"
        else:
            self.held = "" if self._deferral is None else self._deferral(self._section, wall)
        return self.held

    def live(self, now: float, server: int | None, *, awake: bool) -> None:
        """Record the time since the last call, if it was spent training or waiting on the link."""
        if awake:
            self.wake = self.wake.use(round(1000 * max(0.0, now - self._last_call)), server)
        self._last_call = now

    @property
    def is_flash_spent(self) -> bool:
        """Return whether the day's flash quota is used up."""
        return self.flash.is_spent(self.limits.daily_flash_bytes)

    @property
    def is_wake_spent(self) -> bool:
        """Return whether the day's wake time is used up."""
        most = self.limits.daily_wake_time
        return self._woken(self.wake).is_spent(None if most is None else round(1000 * most))

    def has_wake_time(self, share: float, server: int | None) -> bool:
        """Return whether less than a share of the day's wake time is used; always without a limit."""
        most = self.limits.daily_wake_time
        used = self._woken(self.wake.use(0, server)).used
        return most is None or used < 1000 * share * most

    @property
    def patience(self) -> float:
        """Seconds that readings may wait in memory before they are written."""
        return _SPENT_PATIENCE if self.is_flash_spent else self.limits.commit_interval


def bytes_written() -> int:
    """Return the bytes that this process wrote to disks, as the kernel counts; 0 if unknown."""
    try:
        lines = _IO.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("write_bytes:")), 0)


def limit_memory(data: int | None) -> None:
    """Limit the data segment of this process, in bytes (``RLIMIT_DATA``)."""
    if data is None:
        return
    import resource  # noqa: PLC0415 - not on every platform

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    within = data if hard == resource.RLIM_INFINITY else min(data, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (within, hard))


def data_limit() -> int | None:
    """Return the limit of this process's data in bytes (``RLIMIT_DATA``); None without one."""
    try:
        import resource  # noqa: PLC0415 - not on every platform
    except ImportError:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return None if soft == resource.RLIM_INFINITY else soft


_SHORT = ("cannot allocate memory", "failed to map segment", "bad_alloc", "unable to allocate")
"""Texts of libraries in place of ``MemoryError``."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error, of whatever kind, says that there is too little memory.

    >>> is_out_of_memory(ImportError("x.so: failed to map segment from shared object"))
    True
    >>> is_out_of_memory(ImportError("No module named 'x'"))
    False
    """
    return isinstance(error, MemoryError) or any(one in str(error).lower() for one in _SHORT)


def peak_kib() -> int:
    """Return the peak resident memory of this process, in KiB."""
    import resource  # noqa: PLC0415 - not on every platform

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


_STACK = 512 * 1024  # bytes of a thread's stack; the system's 8 MiB count as data, used or not
_NATIVE_STACK = 2 * _STACK  # of a thread that a library starts, for instance onnxruntime
_ATTRIBUTES = 256  # bytes, more than a pthread_attr_t has


def spare_native_memory() -> None:
    """Make later threads' stacks small, and let OpenBLAS use one buffer; changes no result."""
    threading.stack_size(_STACK)
    with suppress(OSError, AttributeError):  # glibc only; others have small stacks by default
        libc, attributes = ctypes.CDLL(None), ctypes.create_string_buffer(_ATTRIBUTES)
        libc.pthread_getattr_default_np(attributes)
        libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(_NATIVE_STACK))
        libc.pthread_setattr_default_np(attributes)
    _release_blas_buffer()


def _release_blas_buffer() -> None:
    """Let OpenBLAS release the buffer of its thread, 32 MiB on x86-64, before the first product.

    It maps one when it is loaded and a second one at the first product, of the same thread. Before a
    fork it gives its threads and their buffers back; with one thread it never takes them again, and
    the product finds the first buffer free. A child that ends at once is enough.
    """
    is_alone = threading.active_count() == 1 and hasattr(os, "fork")
    if not is_alone or os.environ.get("OPENBLAS_NUM_THREADS") != "1":
        return
    with suppress(OSError):  # no memory for a copy, or a limit of processes: nothing is released
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
