"""Run an incident replay in a process of its own, one at a time."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TIMEOUT = 300.0  # s
FIELDS = ("rounds", "run", "rule", "f", "min_updates", "without")


class ReplayFailedError(Exception):
    """A replay without a result; the message is the command's own."""


@dataclass(slots=True)
class ReplayProcess:
    """Runner of ``gridfed-aggregator replay``."""

    config: Path  # configuration file of the aggregator
    _busy: threading.Lock = field(default_factory=threading.Lock)

    def result(self, form: Mapping[str, str]) -> dict[str, Any]:
        """Return a form's replay as JSON; raise ReplayFailedError if it is refused, too slow or not the only one."""
        options = [f"--{name.replace('_', '-')}={form[name]}" for name in FIELDS if form.get(name)]
        if not self._busy.acquire(blocking=False):
            raise ReplayFailedError("Another replay is running: try again when it has ended.")
        try:
            done = subprocess.run(  # noqa: S603 - our own program; every option is one word
                [
                    sys.executable,
                    "-m",
                    "aggregator",
                    "replay",
                    str(self.config),
                    "--json",
                    *options,
                ],
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ReplayFailedError(
                f"The replay took more than {TIMEOUT:g} s: choose fewer rounds."
            ) from error
        finally:
            self._busy.release()
        if done.returncode != 0:
            raise ReplayFailedError(done.stderr.strip() or f"exit code {done.returncode}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found
