"""Real cellular traffic as the device SDK's own series, one client a cell.

The folders are those that ``tools/fetch.py`` makes. Splits are those of the accuracy anchors and of
BAFDP: the last 7 days are the test, the 7 days before them choose settings. Barcelona is the
exception, for its shortest station has 7 days in all: its last fifth is the test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from edge_sdk.extensions.evaluation.forecast_metrics import mae, rmse
from edge_sdk.forecasting.series import Series, SeriesRow
from edge_sdk.forecasting.windows import ChannelFrame, Scale
from edge_sdk.protocol.contract.manifest import Manifest

MILAN, BARCELONA, TRENTO = "cellular_milan", "cellular_barcelona_lte", "cellular_trento"
SETS = (MILAN, BARCELONA, TRENTO)
DAY = 86_400
TITLES = {MILAN: "Milan", BARCELONA: "Barcelona LTE", TRENTO: "Trento"}

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Split = Literal["learn", "choose", "train", "test"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One client's traffic."""

    name: str  # as in the data file
    step: int  # seconds a row
    start: int  # Unix seconds of the first row; local time is used as if it were UTC
    traffic: Floats  # in the set's unit, shape ``(T,)``, NaN where missing
    held: int  # rows of the test part, and as many before it to choose settings by

    @property
    def day(self) -> int:
        return DAY // self.step

    def rows(self, part: Split) -> tuple[int, int]:
        """Return first row and end of a part; ``learn`` and ``choose`` make up ``train``.

        >>> cell = Cell("a", 3600, 0, np.zeros(720), 168)
        >>> [cell.rows(x) for x in ("learn", "choose", "train", "test")]
        [(0, 384), (384, 552), (0, 552), (552, 720)]
        """
        end = len(self.traffic)
        test, choose = end - self.held, end - 2 * self.held
        ends = {"learn": (0, choose), "choose": (choose, test), "train": (0, test)}
        return ends.get(part, (test, end))

    @property
    def scale(self) -> Scale:
        return Scale.of(self.traffic[: self.rows("train")[1]])

    def series(self, stream: str) -> Series:
        """Return the readings on the SDK's grid."""
        series = Series(self.step, [stream], capacity=len(self.traffic))
        first = self.start // self.step
        series.load(SeriesRow(stream, first + i, float(v)) for i, v in enumerate(self.traffic))
        return series


def load(folder: Path, name: str, clients: int | None = None) -> list[Cell]:
    """Read the first ``clients`` cells of a set; all of them unless said.

    Raises:
        KeyError: A set this file does not know.
    """
    return list(READERS[name](folder / name))[:clients]


def present(folder: Path, names: Sequence[str] = SETS) -> tuple[list[str], list[str]]:
    there = [x for x in names if (folder / x).is_dir()]
    return there, [x for x in names if x not in there]


def _grid(folder: Path) -> Iterator[Cell]:
    table = pd.read_parquet(folder / "internet_hourly.parquet")
    for name in table.columns.drop("ts_local"):
        yield Cell(name, 3600, _start(table.ts_local), table[name].to_numpy(float), 7 * 24)


def _stations(folder: Path) -> Iterator[Cell]:
    for path in sorted(folder.glob("*_2min.parquet")):
        bits = pd.read_parquet(path).set_index("ts_local").down_bits
        bins = bits.resample("10min").agg(["sum", "count"])
        volume = bins[bins["count"] == 5]["sum"].asfreq("10min") / 1e6
        times = pd.Series(volume.index)
        held = len(volume) - (len(volume) - int(len(volume) * 0.2))
        name = path.name.removesuffix("_2min.parquet")
        yield Cell(name, 600, _start(times), volume.to_numpy(float), held)


def _start(times: pd.Series[pd.Timestamp]) -> int:
    return int(pd.Timestamp(times.iloc[0]).timestamp())


READERS: Mapping[str, Callable[[Path], Iterator[Cell]]] = {
    MILAN: _grid,
    BARCELONA: _stations,
    TRENTO: _grid,
}


def form(base: Manifest, cell: Cell) -> Manifest:
    """Return a bundle's manifest on a cell's own step.

    The bundle's lags hold the target's hours on days before. On another step they hold the same
    slots of yesterday, the day before and so on, as far as the channels go.
    """
    if cell.step == base.window.step_seconds:
        return base
    window = replace(base.window, step_seconds=cell.step)
    lags = sorted({x.lag_steps for x in base.features if x.lag_steps is not None})
    first = 1 if cell.day > window.horizon else 2
    days = {old: (first + i) * cell.day - window.horizon + 1 for i, old in enumerate(lags)}
    features = tuple(
        x if x.lag_steps is None else replace(x, lag_steps=days[x.lag_steps]) for x in base.features
    )
    return replace(base, window=window, features=features)


def frame(cell: Cell, base: Manifest, *, scale: Scale | None = None) -> ChannelFrame:
    """Cut a cell's channels as the device would, scaled by its training part unless told."""
    manifest = form(base, cell)
    series = cell.series(manifest.target.stream)
    return ChannelFrame.of(series, manifest, scale=cell.scale if scale is None else scale)


def origins(cell: Cell, cut: ChannelFrame, part: Split) -> Ints:
    """List the origins whose targets all lie in a part; inputs may reach back, never forward.

    What is learnt from must have been observed; what is judged is judged where it was.
    """
    start, stop = cell.rows(part)
    every = cut.origins(observed=part != "test")
    return every[(every + 1 >= start) & (every + cut.window.horizon < stop)]


def scored(told: Mapping[str, Floats], truth: Mapping[str, Floats]) -> dict[str, float]:
    """Score forecasts on the raw scale, over all cells at once and averaged over them.

    Args:
        told: Forecasts by cell, each of shape ``(origins, horizon)``.
        truth: What came, in the same form, NaN where nothing was measured.

    >>> one = {"a": np.array([[1.0]]), "b": np.array([[3.0]])}
    >>> sorted(scored(one, {"a": np.array([[1.0]]), "b": np.array([[7.0]])}).items())[:2]
    [('MAE', 2.0), ('MAE_mean', 2.0)]
    """
    names = sorted(truth)
    y = np.concatenate([truth[x].ravel() for x in names])
    yhat = np.concatenate([told[x].ravel() for x in names])
    return {
        "RMSE": rmse(y, yhat),
        "MAE": mae(y, yhat),
        "RMSE_mean": float(np.mean([rmse(truth[x], told[x]) for x in names])),
        "MAE_mean": float(np.mean([mae(truth[x], told[x]) for x in names])),
    }


def repeated(cut: ChannelFrame, rows: Ints, lag: int) -> Floats:
    """Repeat the value ``lag`` rows before each target, or whole seasons earlier."""
    return _repeated(cut.last, rows, cut.window.horizon, lag)


def _repeated(values: Floats, rows: Ints, horizon: int, lag: int) -> Floats:
    """Nothing after the origin is read.

    >>> _repeated(np.arange(100.0), np.array([50]), 3, 2).tolist()
    [[49.0, 50.0, 49.0]]
    """
    ahead = np.arange(1, horizon + 1)
    back = -(-ahead // lag) * lag
    return np.asarray(values[np.maximum(rows[:, None] + ahead - back, 0)])


def by_hour(cell: Cell, cut: ChannelFrame, rows: Ints) -> Floats:
    """Forecast the training median of the slot of the day, weekends separately, without training."""
    at = rows[:, None] + 1 + np.arange(cut.window.horizon)
    learnt = np.arange(cell.rows("train")[1])
    usual = pd.Series(cell.traffic[learnt]).groupby(_slot(cell, learnt)).median()
    whole = float(np.nanmedian(cell.traffic[learnt]))
    return np.asarray(usual.reindex(_slot(cell, at).ravel()).fillna(whole)).reshape(at.shape)


def _slot(cell: Cell, rows: Ints) -> Ints:
    times = cell.start // cell.step + rows
    weekend = (times // cell.day + 3) % 7 >= 5
    return np.asarray(times % cell.day + cell.day * weekend)
