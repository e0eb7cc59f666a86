"""Readings that no device trained on, and the error of a common model on them."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggregator import config as configs
from aggregator.config.bundle_registry import archive_keys
from edge_sdk.bundle import Bundle, TrustedKeys, release_keys, shipped_folder
from edge_sdk.errors import USAGE, Failure
from edge_sdk.forecasting.calendar_features import Ints
from edge_sdk.forecasting.forecast import POINT, rolling
from edge_sdk.forecasting.series import Reading
from edge_sdk.forecasting.windows import WHOLE, ChannelFrame
from edge_sdk.protocol.contract.manifest import FORECAST, GRADIENT, Manifest
from edge_sdk.protocol.contract.parameter_layout import ParamSpec, Vector
from edge_sdk.shared_math.optim import adam, optimiser_step
from edge_sdk.training.bundle_install import install
from edge_sdk.training.run_role import series_for

SLOTS = 1 << 20  # most slots of a file that are kept
LEAST = 24  # fewest windows of a file
WINDOWS, OWN_STEPS, OWN_RATE = 256, 40, 0.01  # training of personal layers, by Adam

Score = Callable[[NDArray[np.floating]], float]  # map a common model to its error


class HeldOutError(Failure):
    """Readings or a run for which no error can be computed."""

    exit_code = USAGE


def readings(path: Path, target: str) -> Iterator[Reading]:
    """Read a CSV file: a column of times, and a column for each stream.

    Times are ISO 8601 (UTC without an offset) or Unix seconds. A column has its stream's name; a
    file with one column beside the times holds the target. Empty cells are skipped.

    Raises:
        HeldOutError: The file cannot be read, or has a cell that is neither.
    """
    line = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as text:
            lines = csv.reader(text)
            head = next(lines, [])
            names = [target] if len(head) == 2 else head[1:]
            for row in lines:
                line = lines.line_num
                for name, cell in zip(names, row[1:], strict=False):
                    if cell.strip():
                        yield Reading(name, _time(row[0]), float(cell))
    except (OSError, UnicodeDecodeError) as error:
        raise HeldOutError(f"{path}: {error}") from error
    except ValueError as error:
        raise HeldOutError(f"{path}: line {line}: {error}") from error


def _time(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def score_of(bound: configs.BoundRun, files: Sequence[Path]) -> Score:
    """Return the function that scores common models of a run on files of readings.

    Its result is the root mean squared error over the range of the file's values, mean over files. Where
    the run has personal layers, they are trained from the bundle's, with the common layers as they are,
    on the first three quarters of a file's windows; the last quarter is scored.

    Raises:
        HeldOutError: The bundle has no forecast from one vector, or a file has too few windows.
    """
    manifest = bound.bundle.manifest
    if not {FORECAST, GRADIENT} <= manifest.graphs.keys():
        raise HeldOutError(f"bundle {manifest.name} has no forecast from one vector")
    with tempfile.TemporaryDirectory(prefix="gridfed-") as folder:
        keys = (*release_keys(shipped_folder()), *archive_keys(bound.config))
        bundle = install(bound.bundle.archive, Path(folder), trust=TrustedKeys(keys))
    held = [_HeldOut(bundle, bound.spec, _frame(manifest, path)) for path in files]
    return lambda w: float(np.mean([one.error(w.astype(np.float32)) for one in held]))


@dataclass(frozen=True, slots=True)
class _HeldOut:
    bundle: Bundle
    spec: ParamSpec
    frame: ChannelFrame

    def error(self, w: Vector) -> float:
        origins, levels = self.frame.origins(WHOLE), self.bundle.manifest.loss.levels or POINT
        p = self.spec.place(self.bundle.initial, w)
        with np.errstate(over="ignore", invalid="ignore"):
            if self.spec.shared_size < len(p):
                kept = 3 * len(origins) // 4
                p, origins = self._with_own_layers(p, origins[:kept]), origins[kept:]
            found = rolling(self.bundle.forecast, p, self.frame, origins, levels)
            error = float(np.sqrt(np.mean((found - self.frame.truth(origins)) ** 2)))
        return error / self.frame.scale.width if np.isfinite(error) else float("inf")

    def _with_own_layers(self, p: Vector, origins: Ints) -> Vector:
        some = origins[np.linspace(0, len(origins) - 1, min(WINDOWS, len(origins))).astype(int)]
        x, y = self.frame.inputs(some), self.frame.targets(some)
        optimiser, w = adam(OWN_RATE), self.spec.shared(p)
        moments = optimiser.init(p)
        for _ in range(OWN_STEPS):
            _, g = self.bundle.gradient(p=p, x=x, y=y)
            p, moments = optimiser_step(optimiser, p, g, moments)
            p = self.spec.place(p, w)
        return p


def _frame(manifest: Manifest, path: Path) -> ChannelFrame:
    series = series_for(manifest, SLOTS)
    for reading in readings(path, manifest.target.stream):
        series.add(reading)
    frame = ChannelFrame.of(series, manifest) if len(series) else None
    if frame is None or len(frame.origins(WHOLE)) < LEAST:
        hint = f"columns: a time, then {', '.join(manifest.streams)}"
        raise HeldOutError(
            f"{path} has fewer than {LEAST} complete windows for {manifest.name}", hint=hint
        )
    return frame
