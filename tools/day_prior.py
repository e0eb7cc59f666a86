"""Train the prior of a day bundle from folders of open data.

    python -m tools.day_prior load-day-1 --data FOLDER
    python -m tools.day_prior chargers-day --data FOLDER --out /tmp/chargers-day.npz

``tools/day_prior.toml`` names the folders below FOLDER, their sources and their licences. The prior
is what ``edge_sdk.extensions.analytic.profile_form`` solves from these devices: scales, coefficients
of the median and of the expected value for every number of known days, announced spreads, strengths
of the own part, and residual days. Every stage sees windows in which only that many days are known.

A recipe that names its homes gets coefficients for homes too, and the weights that tell a home by
its known days.

The penalty is chosen among the recipe's by leaving out one kind of device after the other (a home, or
all buildings of one type), and so are spreads, strengths, residual days and the share: all of them
are what a device sees that the prior has not learned from. Nothing is chosen on a test part.

Windows are few for each device and stage: about 10 MB of features a device. Needs pandas and
pyarrow (the ``dev`` extra). The same input gives the same file on the same machine.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tomllib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from edge_sdk.extensions.analytic.profile_features import (
    DAYS,
    HOUR,
    ProfileRecord,
    ProfileRows,
    profile_rows,
)
from edge_sdk.extensions.analytic.profile_form import (
    LARGEST,
    RELAXATION,
    STAGES,
    announced_spread,
    fleet_scale,
    naive_noise,
    next_coefficients,
    prior_forecast,
    scaled_design,
    spread_columns,
    stage_of,
    stage_statistics,
)
from edge_sdk.extensions.analytic.profile_kinds import (
    SIGNS,
    fitted_weights,
    home_share,
    home_signs,
)
from edge_sdk.extensions.analytic.reweighting import QuantileLoss
from edge_sdk.extensions.analytic.statistics import Statistic
from edge_sdk.forecasting.calendar_features import DAY, Floats, Ints
from firmware_sim.evaluation.own_strength import best_strengths, strength_losses

T = TypeVar("T")
Sums = Mapping[str, Mapping[int, Statistic]]
"""Sums of a pass, by kind of device and stage."""

RECIPES = Path(__file__).with_name("day_prior.toml")
PRIORS = Path(__file__).resolve().parents[1] / "aggregator/extensions/authoring/priors"
MEDIAN = QuantileLoss()
PENALTIES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
"""Penalties that are tried where a recipe names none."""
BEFORE = 1e-5
"""Penalty of all passes but the last two, where the recipe's least one is no larger."""
SHARES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
STRENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0, math.inf)
JUDGED = {2: 3, 4: 7, 6: 14, 8: 56}
"""Days of a device that pretends to be new, by stage."""
MOST_JUDGED = 24
PASSES = 8
ORIGINS = 40
"""Windows of a device in each stage."""
RESIDUAL_DAYS = 128


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """A device's record on a uniform grid."""

    name: str
    kind: str  # devices of one kind are left out together
    load: Floats  # NaN where unobserved, shape ``(T,)``
    local: Ints  # wall-clock seconds of every row, shape ``(T,)``
    step: int
    is_home: bool = False

    @property
    def day(self) -> int:
        return DAY // self.step


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """Windows of one site, as rows of its design."""

    rows: ProfileRows
    truth: Floats  # in the series' unit, shape ``(n, H)``

    @property
    def targets(self) -> Floats:
        """Return targets in levels, minus base, NaN where they do not count, shape ``(n · H,)``."""
        found = self.truth / self.rows.level[:, None] - self.rows.base
        return np.where(np.abs(found) <= LARGEST, found, np.nan).ravel()

    @property
    def stages(self) -> Ints:
        """Return the stage of each row, shape ``(n · H,)``."""
        return np.repeat(stage_of(self.rows.known), self.truth.shape[1])

    @property
    def profile(self) -> Floats:
        """Return the mean of all known days at each slot, in levels, shape ``(n, H)``."""
        mean = self.rows.design[:, :, self.rows.names.index("mall")]
        return np.asarray(self.rows.base + mean, np.float64)


def sites(folder: Path, most: int, step: int, *, homes: bool = False) -> list[Site]:
    """Read the devices of a prepared set or of raw files, by the names of the files.

    Args:
        most: Largest number of devices; they are taken evenly from the ordered names.
        step: Seconds of a row; shorter intervals are added up.
        homes: Whether they are homes.

    Raises:
        SystemExit: No file that is known.
    """
    found = list(_read(folder))
    if not found:
        raise SystemExit(f"{folder}: no table that is known; see tools/day_prior.toml")
    taken = [found[i * len(found) // min(most, len(found))] for i in range(min(most, len(found)))]
    return [replace(_added(site, step), is_home=homes) for site in taken]


def _read(folder: Path) -> Iterator[Site]:
    for file, reader in _TABLES.items():
        for path in sorted(folder.glob(file)):
            yield from reader(folder.name, path)


def _long(name: str, path: Path) -> Iterator[Site]:
    for key, one in pd.read_parquet(path).groupby("building_id"):
        yield _site(f"{name}/{key}", f"{name}/{key}", one.load_kwh, one.ts_local, HOUR)


def _hourly(name: str, path: Path) -> Iterator[Site]:
    yield from _wide(name, pd.read_parquet(path), HOUR)


def _quarters(name: str, path: Path) -> Iterator[Site]:
    yield from _wide(name, pd.read_parquet(path), 900)


def _charging(name: str, path: Path) -> Iterator[Site]:
    for site in _wide(name, pd.read_parquet(path).drop(columns="ts_utc"), 1800):
        built = np.maximum.accumulate(np.nan_to_num(site.load)) > 0.0
        yield replace(site, load=np.where(built, site.load, np.nan))


def _comstock(name: str, path: Path) -> Iterator[Site]:
    for key, one in pd.read_parquet(path).groupby("upgrade"):
        begun = one.timestamp - pd.Timedelta("15min")  # the source names the end
        yield _site(f"{name}/{key}", name, one.electricity_total_kwh, begun, 900)


def _reference(name: str, path: Path) -> Iterator[Site]:
    _, _, city, kind = path.stem.split("_", 3)
    if kind != "FlatLoad":
        load = pd.Series(np.loadtxt(path)) * 8760.0  # the source is a share of the year
        times = pd.Series(pd.date_range("2017-01-01", periods=len(load), freq="h"))  # a Sunday
        yield _site(f"{name}/{kind} {city}", f"{name}/{kind}", load, times, HOUR)


def _resstock(name: str, path: Path) -> Iterator[Site]:
    table = pd.read_csv(path)
    heat = (table.cooling_demand + table.heating_demand) / 3.0  # by a heat pump
    load = table.non_shiftable_load + table.dhw_demand + heat
    times = pd.Series(pd.date_range("2018-01-01", periods=len(table), freq="h"))
    yield _site(f"{name}/{path.stem}", f"{name}/{path.stem}", load, times, HOUR)


_TABLES: Mapping[str, Callable[[str, Path], Iterator[Site]]] = {
    "load_hourly.parquet": _long,
    "electricity_hourly_kwh.parquet": _hourly,
    "load_15min_pu.parquet": _quarters,
    "demand_30min.parquet": _charging,
    "timeseries_15min.parquet": _comstock,
    "crb8760_norm_*.dat": _reference,
    "resstock-*.csv": _resstock,
}


def _wide(name: str, table: pd.DataFrame, step: int) -> Iterator[Site]:
    for column in table.columns.drop("ts_local"):
        kind = f"{name}/{column}"
        yield _site(kind, kind, table[column], table.ts_local, step)


def _site(name: str, kind: str, values: pd.Series, times: pd.Series, step: int) -> Site:
    local = times.to_numpy().astype("datetime64[s]").astype(np.int64)
    return Site(name, kind, values.to_numpy(np.float64), local, step)


def _added(site: Site, step: int) -> Site:
    size = step // site.step
    if size == 1:
        return site
    rows = len(site.load) // size * size
    values = site.load[:rows].reshape(-1, size).sum(axis=1)
    return Site(site.name, site.kind, values, site.local[:rows:size], step)


def origins_of(site: Site, first: int = DAYS) -> Ints:
    """Return the rows before 00, 06, 12 and 18 o'clock with ``first`` days before and one after them."""
    rows = np.arange(first * site.day, len(site.load) - site.day) - 1
    return np.asarray(rows[site.local[rows + 1] % (DAY // 4) == 0])


def windows(site: Site, origins: Ints, known: Ints) -> Windows:
    """Return windows in which nothing is known but the newest days before each origin.

    Args:
        origins: Row numbers of last known rows, shape ``(n,)``.
        known: Number of known days of each, shape ``(n,)``.
    """
    ahead, back = site.day, (DAYS * DAY + HOUR) // site.step
    away = np.arange(1 - back, ahead + 1)
    rows = origins[:, None] + away
    is_known = (away <= 0) & (away > -known[:, None] * site.day) & (rows >= 0)
    values = np.where(is_known, site.load[np.maximum(rows, 0)], np.nan)
    local = site.local[np.maximum(rows, 0)] + np.minimum(rows, 0) * site.step
    record = ProfileRecord(values.ravel(), local.ravel(), site.step)
    places = np.arange(len(origins)) * len(away) + back - 1
    return Windows(
        profile_rows(record, places, ahead),
        site.load[origins[:, None] + 1 + np.arange(ahead)],
    )


def sample(site: Site, most: int = ORIGINS) -> Windows:
    """Return windows of every stage, the same in every call."""
    draw = np.random.Generator(np.random.Philox(zlib.crc32(site.name.encode())))
    every = origins_of(site)
    seen = np.isfinite(site.load[every[:, None] + np.arange(-DAY // site.step + 1, 1)]).all(axis=1)
    every = every[seen]
    taken, known = [], []
    for number, least in enumerate(STAGES):
        upto = STAGES[number + 1] if number + 1 < len(STAGES) else least + 1
        chosen = draw.permutation(every)[:most]
        taken.append(chosen)
        known.append(draw.integers(least, upto, len(chosen)))
    return windows(site, np.concatenate(taken), np.concatenate(known))


def noise_of(one: Windows) -> float:
    """Return the error of last week's same slot in levels, on windows that know it."""
    missed = naive_noise(one.rows, one.targets)[one.stages >= stage_of(np.array(7))]
    return max(float(np.nanmean(missed)), 1e-3)


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """A prior as named arrays; the names are those of a day bundle's layers."""

    arrays: Mapping[str, Floats]
    report: Mapping[str, float]


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """What the passes over some devices have found."""

    median: Floats  # of every stage
    expected: Floats
    left_out: Mapping[str, Floats]  # medians of all devices but those of a kind
    penalty: float


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """The solutions of all devices and of the homes, with the probability of a home."""

    every: Solution
    homes: Solution
    weights: Floats  # of ``home_share``, of every stage

    def added(self, site: Site, one: Windows, design: NDArray[np.float32]) -> Floats:
        """Return what the prior of other kinds of devices adds to base, shape ``(n · H,)``."""
        stages = stage_of(one.rows.known)
        share = home_share(home_signs(one.rows, site.day), self.weights[stages])
        every, homes = (
            prior_forecast(
                design,
                np.zeros(len(design)),
                one.stages,
                found.left_out.get(site.kind, found.median),
            )
            for found in (self.every, self.homes)
        )
        return np.asarray(every + np.repeat(share, site.day) * (homes - every))


class Training:
    """The passes over the devices of a recipe.

    Args:
        fleet: Devices, in order of name.
        console: Where progress is shown.
        penalties: One of which is chosen.
    """

    def __init__(
        self, fleet: Sequence[Site], console: Console, penalties: Sequence[float] = ()
    ) -> None:
        self._penalties = tuple(penalties or PENALTIES)
        self.fleet = sorted(fleet, key=lambda site: site.name)
        self._console = console
        self._kept: list[tuple[Site, Windows, float]] = []
        for site in self._tracked(self.fleet, "windows"):
            one = sample(site)
            self._kept.append((site, one, noise_of(one)))
        self.scale = fleet_scale(
            [np.square(one.rows.design).mean(axis=(0, 1)) for _, one, _ in self._kept]
        )

    def _tracked(self, items: Sequence[T], text: str) -> Iterator[T]:
        with Progress(console=self._console, transient=True) as bar:
            yield from bar.track(items, description=text)

    def _each(self, text: str) -> Iterator[tuple[Site, Windows, float]]:
        yield from self._tracked(self._kept, text)

    def _design(self, one: Windows) -> NDArray[np.float32]:
        return scaled_design(one.rows, self.scale)

    def summed(self, coefficients: Floats | None, text: str, *, homes: bool) -> Sums:
        """Return the sums of a pass, by kind and stage.

        Args:
            homes: Whether homes alone count.
        """
        found: dict[str, dict[int, Statistic]] = {}
        for site, one, noise in self._each(text):
            if homes and not site.is_home:
                continue
            mine = found.setdefault(site.kind, {})
            sent = stage_statistics(
                self._design(one), one.targets, one.stages, coefficients, MEDIAN, noise=noise
            )
            for stage, each in sent.items():
                mine[stage] = mine[stage] + each if stage in mine else each
        return found

    def solved(self, *, homes: bool) -> Solution:
        """Return the solution of all devices or of the homes; the last passes choose the penalty."""
        penalty = max(BEFORE, self._penalties[0])
        first = self.summed(None, "pass 1", homes=homes)
        median, sums = next_coefficients(None, whole(first), penalty), first
        for number in range(1, PASSES - 2):
            step = RELAXATION if number > 1 else 1.0
            sums = self.summed(median, f"pass {number + 1}", homes=homes)
            median = next_coefficients(median, whole(sums), penalty, step=step)
        losses = self.penalty_losses(sums)
        self._console.print({p: round(x, 4) for p, x in losses.items()})
        penalty = min(losses, key=losses.__getitem__)
        for number in range(PASSES - 2, PASSES):
            sums = self.summed(median, f"pass {number + 1}", homes=homes)
            median = next_coefficients(median, whole(sums), penalty)
        expected = next_coefficients(None, whole(first), penalty)
        return Solution(median, expected, left_out(sums, penalty), penalty)

    def penalty_losses(self, sums: Sums) -> dict[float, float]:
        """Return the mean error over devices after each penalty, by leaving out each device's kind."""
        known = {penalty: left_out(sums, penalty) for penalty in self._penalties}
        losses: dict[float, list[float]] = {penalty: [] for penalty in self._penalties}
        for site, one, noise in self._each("penalties"):
            if site.kind not in sums:
                continue
            design, zeros = self._design(one), np.zeros(one.truth.size)
            for penalty, models in known.items():
                told = prior_forecast(design, zeros, one.stages, models[site.kind])
                losses[penalty].append(float(np.nanmean(np.abs(one.targets - told))) / noise)
        return {penalty: float(np.mean(found)) for penalty, found in losses.items()}

    def home_weights(self) -> Floats:
        """Return the weights of the probability of a home, of every stage."""
        signs = [home_signs(one.rows, site.day) for site, one, _ in self._kept]
        is_home = [np.full(len(one.truth), site.is_home) for site, one, _ in self._kept]
        stages = np.concatenate([stage_of(one.rows.known) for _, one, _ in self._kept])
        every, flags = np.concatenate(signs), np.concatenate(is_home)
        if flags.all() or not flags.any():
            return np.zeros((len(STAGES), SIGNS))
        return np.stack(
            [fitted_weights(every[stages == s], flags[stages == s]) for s in range(len(STAGES))]
        )

    def calibrated(self, prior: Prior) -> Trained:
        """Return spreads, residual days, share and strengths, cross-validated by kind of device."""
        ratios: list[Floats] = []
        blends: list[Floats] = []
        missed: list[tuple[Floats, Floats, Ints, float]] = []
        for site, one, noise in self._each("spreads"):
            shape = one.truth.shape
            told = one.rows.base + prior.added(site, one, self._design(one)).reshape(shape)
            truth = np.where(
                np.isfinite(one.targets.reshape(shape)), one.truth / one.rows.level[:, None], np.nan
            )
            missed.append((truth - told, spread_columns(one.rows), stage_of(one.rows.known), noise))
            own = np.nanmean(np.abs(truth - one.profile), axis=1)
            few = stage_of(one.rows.known) <= stage_of(np.array(3))
            ratios.append(
                _by_stage(np.nanmean(np.abs(truth - told), axis=1), one) / _by_stage(own, one)
            )
            blended = [
                np.nanmean(np.abs(truth - share * told - (1.0 - share) * one.profile)[few]) / noise
                for share in SHARES
            ]
            blends.append(np.array(blended))
        columns = missed[0][1].shape[-1]
        spread = np.zeros((len(STAGES), columns))
        for stage in range(len(STAGES)):
            gram, cross = np.zeros((columns, columns)), np.zeros(columns)
            for left, parts, stages, noise in missed:
                size, cols = np.abs(left[stages == stage]), parts[stages == stage]
                seen = np.isfinite(size)
                rows, goals = cols[seen] / noise, size[seen] / noise
                gram += rows.T @ rows / max(len(rows), 1)
                cross += rows.T @ goals / max(len(rows), 1)
            spread[stage] = _not_negative(gram, cross)
        days = []
        draw = np.random.Generator(np.random.Philox(2026))
        for number in range(RESIDUAL_DAYS):
            left, parts, stages, _ = missed[number * len(missed) // RESIDUAL_DAYS % len(missed)]
            whole_days = np.flatnonzero(np.isfinite(left).all(axis=1))
            if not len(whole_days):
                continue
            place = int(draw.choice(whole_days))
            days.append(left[place] / announced_spread(parts[place], spread[stages[place]]))
        share = SHARES[int(np.mean(blends, axis=0).argmin())]
        ratio = np.nanmean(np.log(np.stack(ratios)), axis=0)
        arrays = {"spread": spread, "residuals": np.stack(days), "share": np.array([share])}
        report = {f"log ratio, stage {s}": float(r) for s, r in enumerate(ratio)}
        return Trained(arrays, report)

    def strengths(self, prior: Prior) -> Floats:
        """Return the strength of the own part at every stage, by devices that pretend to be new.

        Each learns its own part from the windows that lie in its known days, and is judged by the
        week that follows them. A stage that is not in ``JUDGED`` has the strength of the one before.
        """
        judged = self._kept[:: max(1, len(self._kept) // MOST_JUDGED)]
        losses = np.ones((len(judged), len(STAGES), len(STRENGTHS)))
        losses[:, : min(JUDGED), :-1] = np.inf  # one or two days tell nothing of the device alone
        for place, (site, _, _) in enumerate(self._tracked(judged, "strengths")):
            draw = np.random.Generator(np.random.Philox(zlib.crc32(site.name.encode()) + 1))
            for stage in range(min(JUDGED), len(STAGES)):
                if (days := JUDGED.get(stage)) is None:
                    losses[place, stage] = losses[place, stage - 1]
                else:
                    losses[place, stage] = self._strengths_of(site, days, prior, draw)
        return best_strengths(losses, STRENGTHS)

    def _strengths_of(
        self, site: Site, days: int, prior: Prior, draw: np.random.Generator
    ) -> Floats:
        """Return the loss of each strength for a device with ``days`` days of history."""
        every = origins_of(site, 1)
        last = every[(every >= (days + 1) * site.day) & (every < every[-1] - 7 * site.day)]
        now = int(draw.choice(last))
        born = now - days * site.day
        learn = every[(every >= born + site.day) & (every <= now - site.day)]
        judge = every[(every >= now) & (every < now + 7 * site.day)][::3]
        taken = np.concatenate([learn, judge])
        known = np.minimum((np.minimum(taken, now) - born) // site.day, DAYS)
        one = windows(site, taken, known)
        design = self._design(one)
        left = one.targets - prior.added(site, one, design)
        is_known = np.repeat(taken < now, site.day) & (np.arange(len(taken)) < len(learn)).repeat(
            site.day
        )
        return strength_losses(design, left, is_known, MEDIAN, strengths=STRENGTHS)


def _by_stage(values: Floats, one: Windows) -> Floats:
    stages = stage_of(one.rows.known)
    return np.array(
        [
            np.nanmean(values[stages == s]) if (stages == s).any() else np.nan
            for s in range(len(STAGES))
        ]
    )


def _not_negative(gram: Floats, cross: Floats) -> Floats:
    """Return the least squares of non-negative coefficients, by cyclic descent."""
    found = np.zeros(len(cross))
    wide = np.diag(gram) + 1e-9
    for _ in range(2_000):
        for i in range(len(cross)):
            found[i] = max(0.0, found[i] + (cross[i] - gram[i] @ found) / wide[i])
    return found


def whole(sums: Sums) -> dict[int, Statistic]:
    """Return the sums over kinds, by stage."""
    found: dict[int, Statistic] = {}
    for kind in sorted(sums):
        for stage, one in sums[kind].items():
            found[stage] = found[stage] + one if stage in found else one
    return found


def left_out(sums: Sums, penalty: float) -> dict[str, Floats]:
    """Return for every kind the coefficients of all devices of the others."""
    everything = whole(sums)
    return {
        kind: next_coefficients(
            None, {s: one - own[s] if s in own else one for s, one in everything.items()}, penalty
        )
        for kind, own in sums.items()
    }


def trained(fleet: Sequence[Site], console: Console, penalties: Sequence[float] = ()) -> Trained:
    """Return the prior of a fleet, with the figures of its training."""
    training = Training(fleet, console, penalties)
    every, weights = training.solved(homes=False), training.home_weights()
    homes = training.solved(homes=True) if weights.any() else every
    prior = Prior(every, homes, weights)
    rest = training.calibrated(prior)
    strengths = training.strengths(prior)
    arrays = {
        "scale": training.scale,
        "coefficients": every.median,
        "expected": every.expected,
        "homes": homes.median - every.median,
        "home": weights,
        "strengths": np.where(np.isinf(strengths), 1e9, strengths),
        **rest.arrays,
    }
    report = {"penalty": every.penalty, "penalty of homes": homes.penalty}
    return Trained(arrays, {**report, "devices": float(len(fleet)), **rest.report})


def write(prior: Trained, path: Path) -> int:
    """Write the arrays as float16, and scales, spreads and strengths as float32; return the bytes."""
    wide = ("scale", "spread", "strengths", "share", "home")
    kept: dict[str, Any] = {
        name: one.astype(np.float32 if name in wide else np.float16)
        for name, one in prior.arrays.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.savez_compressed(file, **kept)
    return path.stat().st_size


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    recipes = tomllib.loads(RECIPES.read_text(encoding="utf-8"))
    parser.add_argument("bundle", choices=sorted(recipes))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    console = Console(stderr=True)
    recipe = recipes[options.bundle]
    fleet: list[Site] = []
    for source in recipe["sources"]:
        folder, homes = options.data / source["folder"], source.get("homes", False)
        found = sites(folder, source["most"], recipe["step_seconds"], homes=homes)
        console.print(f"{source['folder']}: {len(found)} devices, {source['licence']}")
        fleet += found
    prior = trained(fleet, console, recipe.get("penalties", ()))
    out = options.out or PRIORS / f"{options.bundle}.npz"
    size = write(prior, out)
    console.print({name: round(value, 4) for name, value in prior.report.items()})
    console.print(f"strengths {prior.arrays['strengths'].tolist()}, share {prior.arrays['share']}")
    console.print(f"{out}: {size} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
