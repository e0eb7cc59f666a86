"""Save the middle of a long arm, so that a stopped call continues there."""

from __future__ import annotations

import io
import pickle
import time
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

SECONDS = 60.0


def _read_only(values: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(values)


class _Pickler(pickle.Pickler):
    """Pickle read-only mappings too, which the method's messages have."""

    def reducer_override(self, value: Any) -> Any:  # noqa: ANN401 - any object
        if isinstance(value, MappingProxyType):
            return _read_only, (dict(value),)
        return NotImplemented


@dataclass(slots=True)
class Checkpoint:
    """One file, written at most every ``seconds``; it appears whole.

    Read only what this project wrote: unpickling a foreign file runs its code.
    """

    path: Path | None  # the file; None keeps nothing
    seconds: float = SECONDS  # least time between two writes
    _written: float = 0.0

    def __post_init__(self) -> None:
        self._written = time.monotonic()

    def load(self) -> Any:  # noqa: ANN401 - what was saved
        """Return the last saved state, or None."""
        if self.path is None or not self.path.is_file():
            return None
        return pickle.loads(self.path.read_bytes())  # noqa: S301 - our own file

    def save(self, value: Any) -> None:  # noqa: ANN401 - any picklable object
        """Write a value, unless the last write is too recent."""
        if self.path is None or time.monotonic() - self._written < self.seconds:
            return
        out = io.BytesIO()
        _Pickler(out, pickle.HIGHEST_PROTOCOL).dump(value)
        draft = self.path.with_suffix(".draft")
        draft.write_bytes(out.getvalue())
        draft.replace(self.path)
        self._written = time.monotonic()

    def drop(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)
