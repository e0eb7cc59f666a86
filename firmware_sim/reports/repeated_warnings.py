"""Show a warning that many simulated devices log once, and count the others at the end."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Self

FIELD = "="


class RepeatedWarnings(logging.Handler):
    """Handler of the warnings of all devices of this process, by their event.

    An event is the text of a log line before its fields, as ``docs/logging.md`` lists them.

    >>> shown = []
    >>> with RepeatedWarnings(shown.append):
    ...     for device in range(80):
    ...         logging.getLogger("edge").warning("parameters restored why=%d", device)
    >>> shown
    ['parameters restored why=0', 'parameters restored: 80 times in all']
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._note = note
        self._counts: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        """Show the first line of an event; count it."""
        text = record.getMessage()
        event = text.split(FIELD, 1)[0].rpartition(" ")[0] if FIELD in text else text
        self._counts[event] += 1
        if self._counts[event] == 1:
            self._note(text)

    def __enter__(self) -> Self:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Show the number of each event that was logged more than once."""
        logging.getLogger().removeHandler(self)
        for event, count in self._counts.items():
            if count > 1:
                self._note(f"{event}: {count} times in all")
        self._counts.clear()
