"""Log every task that a device trains, and count them across restarts: an extension in one file.

The device imports it where its configuration has the table:

    [tasklog]
    level = "info"
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Any, Literal

from edge_sdk.protocol.contract.method import Task
from edge_sdk.training.extension import DeviceExtension, DeviceParts

logger = logging.getLogger(__name__)

RECORD = "tasklog"
"""Name of the extension's record in the store; all its names begin with its own."""


@dataclass(frozen=True, slots=True)
class TaskLogSection:
    """Settings of the table ``[tasklog]``."""

    level: Literal["debug", "info"] = "info"  # level of a task's line


class TaskLog(DeviceExtension):
    """The log of one device's tasks."""

    def __init__(self, device: DeviceParts) -> None:
        super().__init__(device)
        section: TaskLogSection = device.config.extensions["tasklog"]
        self._level = logging.DEBUG if section.level == "debug" else logging.INFO
        self._counts: dict[str, int] = {}

    def start(self) -> None:
        """Read the counts of earlier starts."""
        self._counts = json.loads(self.device.store.paper(RECORD) or b"{}")

    def on_task(self, task: Task) -> bool:
        """Log and count a task; the core trains it."""
        self._counts[task.ask] = self._counts.get(task.ask, 0) + 1
        self.device.store.file_paper(RECORD, json.dumps(self._counts).encode())
        logger.log(self._level, "task ask=%s round=%d base=%d", task.ask, task.round, task.base)
        return False

    def status(self) -> dict[str, Any]:
        """Return the lines for ``gridfed-edge status``."""
        return {"tasks": dict(self._counts)}


SECTION = TaskLogSection
EXTENSION = TaskLog
