"""Keep the newest forecast of every device that sends one, as a file in the state folder."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from aggregator.config import AggregatorConfig
from aggregator.ingress.message_ingress import Receiver
from aggregator.operations.server_extensions import ServerExtension, ServerParts
from edge_sdk.app.cli import fields
from edge_sdk.app.permissions import make_private_folder, open_private
from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.outputs.forecast_message import ForecastMessage
from edge_sdk.protocol.codec import decode
from edge_sdk.protocol.envelope import Sealed
from edge_sdk.protocol.topics import is_device_id

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ForecastBook:
    """The newest forecast of each device.

    A forecast is perishable: it is written atomically, but not synchronised to the disk.
    """

    folder: Path  # folder of the files, one for each device: the body as it was signed
    _newest: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, config: AggregatorConfig) -> ForecastBook:
        """Return the forecasts of a fleet."""
        return cls(config.state / "forecasts")

    def record(self, device: str, forecast: ForecastMessage, body: bytes) -> bool:
        """Store a verified forecast; return False for one that is not newer than the stored one."""
        if device not in self._newest:
            before = self.read(device)
            self._newest[device] = -1 if before is None else before.t
        if forecast.t <= self._newest[device]:
            return False
        make_private_folder(self.folder)
        part = self.folder / f"{device}.part"
        try:
            with open_private(part, "wb") as file:
                file.write(body)
            part.replace(self._path(device))
        except OSError as error:
            logger.warning("forecast not stored %s", fields(device=device, why=error))
            return False
        self._newest[device] = forecast.t
        return True

    def read(self, device: str) -> ForecastMessage | None:
        """Return the stored forecast of a device, or None."""
        try:
            return decode(ForecastMessage, self._path(device).read_bytes())
        except (OSError, Refused):
            return None

    def stored(self) -> Iterator[tuple[str, ForecastMessage]]:
        """Yield the devices in order, with their forecasts."""
        for path in sorted(self.folder.glob("*.forecast")):
            device = path.name.removesuffix(".forecast")
            found = self.read(device) if is_device_id(device) else None
            if found is not None:
                yield device, found

    def newest(self, most: int) -> tuple[list[tuple[str, ForecastMessage]], int]:
        """Return the forecasts that were stored last, by device, and the number of all that are stored."""
        files: list[tuple[float, Path]] = []
        for path in self.folder.glob("*.forecast"):
            with suppress(FileNotFoundError):  # removed meanwhile
                files.append((path.stat().st_mtime, path))
        names = [path.name.removesuffix(".forecast") for _, path in sorted(files, reverse=True)]
        found = ((name, self.read(name)) for name in names[:most] if is_device_id(name))
        return sorted((name, one) for name, one in found if one is not None), len(files)

    def _path(self, device: str) -> Path:
        return self.folder / f"{device}.forecast"


def steps_of(forecast: ForecastMessage) -> list[dict[str, Any]]:
    """Return start (Unix seconds), value, lower and upper end of each step; None if unknown.

    >>> blob = np.array([1.5, 1.0, float("nan")], "<f4").tobytes()
    >>> steps_of(ForecastMessage(9, 7200_000, 3600_000, 1, "x", "m", 1, 0, "model", "fleet", blob=blob))
    [{'start': 7200.0, 'value': 1.5, 'lower': 1.0, 'upper': None}]
    """
    table = np.frombuffer(forecast.blob, "<f4").astype(np.float64).reshape(3, forecast.num)
    known = [[value if math.isfinite(value) else None for value in row] for row in table.tolist()]
    return [
        {
            "start": (forecast.start + i * forecast.step) / 1000,
            "value": known[0][i],
            "lower": known[1][i],
            "upper": known[2][i],
        }
        for i in range(forecast.num)
    ]


class ForecastCollection(ServerExtension):
    """Stores the newest forecast of each device while the configuration asks for it."""

    def __init__(self, parts: ServerParts, config: AggregatorConfig) -> None:
        super().__init__(parts, config)
        self._book = ForecastBook.of(config)

    def receivers(self) -> Mapping[str, Receiver]:
        return {ForecastMessage.kind: (ForecastMessage, self._receive)}

    def _receive(self, sealed: Sealed, forecast: ForecastMessage) -> str:
        """Store a forecast; one that is not newer is counted only."""
        if not self.config.section("forecasts").store:
            raise Refused(Reason.UNKNOWN_KIND, "forecasts.store is false")
        is_newer = self._book.record(sealed.sender, forecast, sealed.content)
        return "FORECASTS" if is_newer else "STALE_FORECASTS"
