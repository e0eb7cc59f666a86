"""Read the running daemon's status page, at most once a second for all viewers."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aggregator.commands.status import read_page
from aggregator.config import AggregatorConfig

FRESH = 1.0  # s for which an answer is used again


@dataclass(slots=True)
class LiveStatus:
    """Status document of the daemon; empty while it does not answer."""

    config: AggregatorConfig  # configuration with the daemon's address
    _document: Mapping[str, Any] = field(default_factory=dict)
    _read: float = float("-inf")
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def document(self) -> Mapping[str, Any]:
        """Return the status document; empty if the daemon does not answer."""
        with self._lock:
            now = time.monotonic()
            if now - self._read >= FRESH:
                self._document, self._read = read_page(self.config) or {}, now
            return self._document
