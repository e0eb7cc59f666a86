"""Write forecasts into a file: replaced at once, or appended and rotated."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from edge_sdk.app.permissions import open_private
from edge_sdk.app.schema import Between
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError
from edge_sdk.extensions.outputs.energy_managers import PLANS, plan_text
from edge_sdk.extensions.outputs.forecast_issuer import (
    AgentReport,
    OutputPlace,
    OutputType,
    open_outputs,
)
from edge_sdk.extensions.outputs.formats import HEADER, csv_text, json_text, line_protocol
from edge_sdk.extensions.outputs.metrics_text import metrics_text
from edge_sdk.extensions.outputs.threaded_output import OutputSection, ThreadedOutput

FileFormat = Literal["csv", "json", "line", "prometheus", "emhass", "evcc", "predbat", "openems"]


@dataclass(slots=True)
class FileSink:
    """A file of forecasts. Only its owner can read it."""

    path: Path
    # ``csv``, ``json``, ``line`` (line protocol), ``prometheus`` (metrics), or one of ``PLANS``
    format: FileFormat
    is_appended: bool  # true to append each forecast; False to replace the file, atomically
    max_bytes: int  # size in bytes at which an appended file is rotated
    kept: int  # number of rotated files, ``FILE.1`` being the newest
    wait: Callable[[float], object] = time.sleep  # function that sleeps for so many seconds

    def send(self, report: AgentReport, *, is_new: bool) -> bool:
        """Write a report; state without a new forecast is written as metrics only."""
        if self.format == "prometheus":
            self._replace(metrics_text(report))
            return True
        issued = report.issued
        if not is_new or (not issued.is_available and self.format != "json"):
            return True
        if self.format in PLANS:
            self._replace(plan_text(self.format, issued))
            return True
        text = {"csv": csv_text, "json": json_text, "line": line_protocol}[self.format](issued)
        if self.is_appended:
            self._append(text)
        else:
            self._replace(self._header + text)
        return True

    def serve(self, patience: float) -> None:
        """Wait: a file needs nothing between two reports."""
        self.wait(patience)

    def close(self) -> None:
        """Do nothing: no file stays open."""

    @property
    def _header(self) -> str:
        return HEADER if self.format == "csv" else ""

    def _replace(self, text: str) -> None:
        beside = self.path.with_name(f".{self.path.name}.part")
        with open_private(beside, encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)

    def _append(self, text: str) -> None:
        size = self._trimmed()
        if size and size + len(text.encode()) > self.max_bytes:
            self._rotate()
            size = 0
        with open_private(self.path, "ab") as file:
            file.write(((self._header if not size else "") + text).encode())
            file.flush()
            os.fsync(file.fileno())

    def _trimmed(self) -> int:
        """Cut the file behind its last complete line; return its size, 0 if there is none."""
        try:
            with self.path.open("r+b") as file:
                size = file.seek(0, os.SEEK_END)
                start = max(0, size - 65_536)
                file.seek(start)
                tail = file.read()
                if tail and not tail.endswith(b"\n"):
                    size = start + tail.rfind(b"\n") + 1
                    file.truncate(size)
                return size
        except FileNotFoundError:
            return 0

    def _rotate(self) -> None:
        """Rename ``FILE`` to ``FILE.1``, that to ``FILE.2`` and so on; drop the oldest."""
        if not self.kept:
            self.path.unlink()
            return
        for number in range(self.kept - 1, 0, -1):
            older = self._numbered(number)
            if older.exists():
                older.replace(self._numbered(number + 1))
        self.path.replace(self._numbered(1))

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOutputSection(OutputSection):
    """``type = "file"``: forecasts in a file that only its owner can read."""

    path: Path  # the file
    # line is InfluxDB's line protocol; the last four are documents of energy managers
    format: FileFormat = "csv"
    mode: Literal["replace", "append"] = "replace"  # replace: the newest forecast only, atomically
    max_bytes: Annotated[int, Between(1024, 1 << 40)] = 1 << 20  # size at which append rotates
    keep: Annotated[int, Between(0, 100)] = 3  # rotated files that are kept

    def __post_init__(self) -> None:
        """Refuse to append metrics and documents of energy managers: they have no history."""
        OutputSection.__post_init__(self)
        if self.format not in ("csv", "json", "line") and self.mode == "append":
            raise ValueError(
                f'mode: expected "replace" with format = "{self.format}", got "append"'
            )


def _open(section: FileOutputSection, place: OutputPlace) -> ThreadedOutput:
    def make() -> FileSink:
        is_appended = section.mode == "append"
        return FileSink(section.path, section.format, is_appended, section.max_bytes, section.keep)

    return ThreadedOutput.of(section, place, make)


def checked(config: Config) -> dict[str, str]:
    """Return the names of the outputs; refuse invalid ones, and one whose folder does not exist."""
    of = [x for one in config.participants() for x in open_outputs(config, one.id)]
    for number, section in enumerate(config.output):
        folder = Path(str(section.get("path", "."))).parent
        if "path" in section and not folder.is_dir():
            raise ConfigError(
                f"output[{number}].path: no such folder: {str(folder)!r}", hint=f"mkdir -p {folder}"
            )
    return {"outputs": ", ".join(output.name for output in of) or "none"}


FILE = OutputType(FileOutputSection, _open)
