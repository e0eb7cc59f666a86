"""Links to a broker over MQTT, and their TLS files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def empty_module(name: str) -> Iterator[None]:
    """Let imports inside the block find an empty module of this name.

    A module that is loaded already stays. After the block the name can be imported as usual.

    >>> with empty_module("wave"):
    ...     import wave
    ...     hasattr(wave, "open")
    False
    >>> import wave
    >>> hasattr(wave, "open")
    True
    """
    if name in sys.modules:
        yield
        return
    sys.modules[name] = ModuleType(name)
    try:
        yield
    finally:
        del sys.modules[name]
