"""Score forecasts of 48 hours on the 414 series of M4 Hourly as GIFT-Eval does, beside published rows.

Source: the M4 competition (Makridakis et al., 2020); the scores, and the rows of other models, are those of
GIFT-Eval (Aksu et al., 2024), task ``m4_hourly/H/short``: one window of 48 hours a series, mean over series.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.settings import SettingsError

Floats = NDArray[np.float64]

HORIZON = 48  # hours
SEASON = 24  # hours
LEVELS = tuple(step / 10 for step in range(1, 10))
TASK = "m4_hourly/h/short"
NAIVE = "seasonal_naive"
"""Published row that must be reproduced here before another is compared."""

KNOWN_ROWS = {
    NAIVE: (1.1932, 0.0376),
    "auto_arima": (1.03, 0.0337),
    "auto_theta": (2.46, 0.0414),
    "PatchTST": (1.4, 0.039),
    "chronos_bolt_small": (0.8665, 0.0203),
    "chronos-2": (0.7884, 0.0232),
    "TimesFM-2.5": (0.7336, 0.0236),
    "TiRex": (0.7222, 0.0202),
}
"""MASE and weighted quantile loss in GIFT-Eval's ``results/``, as of November 2026."""

DIGESTS = {
    "Hourly-train.csv": "ea59b7783573c49077a835ab6465c7d66f1474783360f310988a9a737fbca62f",
    "Hourly-test.csv": "71a57fccb15e534d973626ada4fb87febf789e9317715b7cc6dd3b5f90db6f42",
}
"""SHA-256 of the unpacked files of Mcompetitions/M4-methods at 6c1067e."""


@dataclass(frozen=True, slots=True)
class HourlySeries:
    """One series: the readings that a method may see, and the 48 hours that follow."""

    name: str
    known: Floats  # shape (hours,), 700 to 960 of them
    future: Floats  # shape (48,)


@dataclass(frozen=True, slots=True)
class Score:
    """Errors of one method over all series."""

    mase: float  # mean absolute error over that of the same hour a day before, in the known part
    quantile_loss: float  # weighted quantile loss, mean over the levels .1 to .9


def read_series(folder: Path) -> list[HourlySeries]:
    """Read the two files of a folder, packed with gzip or not.

    Raises:
        SettingsError: A file is absent, or is not the published one.
    """
    known, future = (_rows(folder, name) for name in DIGESTS)
    return [HourlySeries(name, values, future[name]) for name, values in known.items()]


def _rows(folder: Path, name: str) -> dict[str, Floats]:
    plain, packed = folder / name, folder / f"{name}.gz"
    if not plain.is_file() and not packed.is_file():
        raise SettingsError(
            f"{folder}: there is no {name} or {name}.gz",
            hint="they are in Mcompetitions/M4-methods, Dataset/Train and Dataset/Test",
        )
    data = plain.read_bytes() if plain.is_file() else gzip.decompress(packed.read_bytes())
    if hashlib.sha256(data).hexdigest() != DIGESTS[name]:
        raise SettingsError(f"{folder}: {name} is not the file of the competition")
    lines = csv.reader(data.decode().splitlines())
    next(lines)
    return {row[0]: np.array([float(one) for one in row[1:] if one]) for row in lines}


def published(folder: Path) -> dict[str, Score]:
    """Return the rows of other models: those of ``published.csv``, else ``KNOWN_ROWS``.

    The columns of the file are task, model, mase and mean_weighted_quantile_loss.

    Raises:
        SettingsError: The file has no row of the seasonal naive, with which every other is checked.
    """
    path = folder / "published.csv"
    if not path.is_file():
        return {name: Score(*row) for name, row in KNOWN_ROWS.items()}
    with path.open(encoding="utf-8", newline="") as file:
        rows = {
            row["model"]: Score(float(row["mase"]), float(row["mean_weighted_quantile_loss"]))
            for row in csv.DictReader(file)
            if row["task"] == TASK
        }
    if NAIVE not in rows:
        raise SettingsError(f"{path}: no row of {NAIVE} for {TASK}")
    return rows


def seasonal_naive(known: Floats) -> Floats:
    """Repeat the last day, with normal quantiles of its errors.

    The spread grows with the number of days ahead (Hyndman and Athanasopoulos, 2021, section 5.5).

    Args:
        known: Shape ``(hours,)``.

    Returns:
        Quantiles at ``LEVELS``, shape ``(48, 9)``.

    >>> day = np.arange(24.0)
    >>> flat = seasonal_naive(np.tile(day, 5))
    >>> flat.shape, float(flat[25, 4])
    ((48, 9), 1.0)
    """
    last = np.tile(known[-SEASON:], HORIZON // SEASON)
    spread = math.sqrt(float(np.mean((known[SEASON:] - known[:-SEASON]) ** 2)))
    ahead = np.sqrt(np.arange(HORIZON) // SEASON + 1.0)
    normal = np.array([NormalDist().inv_cdf(level) for level in LEVELS])
    return np.asarray(last[:, None] + spread * ahead[:, None] * normal)


def score(series: Sequence[HourlySeries], forecasts: Sequence[Floats]) -> Score:
    """Return both errors of forecasts, each of shape ``(48, 9)``.

    >>> one = HourlySeries("H1", np.arange(72.0), np.arange(72.0, 120.0))
    >>> perfect = np.repeat(one.future[:, None], 9, axis=1)
    >>> score([one], [perfect])
    Score(mase=0.0, quantile_loss=0.0)
    >>> round(score([one], [perfect - 12.0]).mase, 3)
    0.5
    """
    medians = LEVELS.index(0.5)
    scaled = [
        np.abs(one.future - found[:, medians]).mean()
        / np.abs(one.known[SEASON:] - one.known[:-SEASON]).mean()
        for one, found in zip(series, forecasts, strict=True)
    ]
    truth, found = np.concatenate([one.future for one in series]), np.concatenate(forecasts)
    losses = [
        2.0 * np.abs((truth - found[:, i]) * ((truth <= found[:, i]) - level)).sum()
        for i, level in enumerate(LEVELS)
    ]
    return Score(float(np.mean(scaled)), float(np.mean(losses) / np.abs(truth).sum()))


def require_naive(found: Score, rows: Mapping[str, Score]) -> None:
    """Refuse to go on where the published naive row is not reproduced to three decimals.

    Raises:
        SettingsError: The data or the scores are not those of the published rows.
    """
    row = rows[NAIVE]
    if abs(found.mase - row.mase) > 5e-4 or abs(found.quantile_loss - row.quantile_loss) > 5e-5:
        raise SettingsError(
            f"the naive row is MASE {found.mase:.4f} and quantile loss {found.quantile_loss:.4f} here, and"
            f" {row.mase:.4f} and {row.quantile_loss:.4f} as published: other data or other scores"
        )
