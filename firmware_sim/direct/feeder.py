"""Forecast two feeders of simulated homes from masked sums, with the functions of devices, witness and aggregator.

Every home masks what it drew and what it expects, the witness opens the sum of each feeder and day, and the
forecast is made of the opened sums. There is no broker and no clock; nothing else is left out, and each opened
sum is that of the rounded numbers bit for bit, as over a broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from aggregator.extensions.feeder.feeder import FeederForecast, feeder_forecast
from aggregator.extensions.feeder.feeder_chart import day_chart
from aggregator.extensions.sums.opened_sum import StoredSum
from aggregator.extensions.sums.sum_set import SumMember, SumSet, opened_total, read_answer
from aggregator.extensions.sums.witness_record import LEAST, WitnessKeys, WitnessRecord
from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.extensions.analytic.profile_half import IssuedWindows, with_own_part
from edge_sdk.extensions.analytic.profile_sums import functions_of_profiles
from edge_sdk.extensions.sums.masked_sum import (
    FollowedContract,
    SumContext,
    masked_message,
    unpacked,
    values_of,
)
from edge_sdk.extensions.sums.messages import SumContract
from edge_sdk.extensions.sums.seed import ExchangeKey
from edge_sdk.forecasting.series import Series, SeriesColumn
from edge_sdk.forecasting.windows import ChannelFrame, Drawable
from edge_sdk.protocol import keys
from edge_sdk.protocol.codec import encode
from edge_sdk.protocol.contract.method import Array
from edge_sdk.protocol.envelope import digest
from firmware_sim.profiles.premises import Premises
from firmware_sim.profiles.weather import Weather

Floats = NDArray[np.float64]

FLEET, FEEDERS = "homes", ("F12", "F13")
HOUR, DAY = 3_600_000, 86_400_000
FIRST = 19_723  # 2024-01-01, a Monday, in days since 1970
BUNDLE, STREAM = "load-day-1", "elec.import.energy"
LEARN = 28
"""Days that a home knows before it first says what it expects."""
RENEWED = 15
"""Days after which a home solves its own part again."""


@dataclass(frozen=True, slots=True)
class FeederResult:
    """A feeder's forecast beside the measured load."""

    forecast: FeederForecast
    truth: tuple[float, ...]  # kWh of all homes
    naive: tuple[float, ...]  # of the week before
    bytes_a_day: int  # that one home sends

    @property
    def error(self) -> float:
        """Mean absolute error over that of the weekly naive forecast."""
        truth = np.array(self.truth)
        own = np.abs(truth - np.array(self.forecast.values)).mean()
        return float(own / np.abs(truth - np.array(self.naive)).mean())


def simulated(
    folder: Path, *, homes: int = 40, days: int = 56, silent: float = 0.1, seed: int = 1
) -> list[FeederResult]:
    """Return the forecasts of both feeders for the day after ``days``.

    Args:
        folder: Of the witness's record.
        homes: Half of them on each feeder; at least 20.
        silent: Share of the homes, every day other ones, whose sums do not arrive.

    Raises:
        ValueError: Too few homes, or no day after those that a home first knows.
    """
    if homes < 20 or days <= LEARN:
        raise ValueError(
            f"{homes} homes, {days} days: expected 20 homes and more than {LEARN} days"
        )
    load = np.stack([_load(seed + n, days + 1) for n in range(homes)])
    expected = _expected(load)
    sums, sent = _opened(folder, load, expected, silent, seed)
    found = []
    for number, feeder in enumerate(FEEDERS):
        total = load[number :: len(FEEDERS)].sum(axis=0)
        forecast = feeder_forecast(sums, feeder, ZoneInfo("UTC"))
        found.append(FeederResult(forecast, _numbers(total[-1]), _numbers(total[-8]), sent))
    return found


def _load(seed: int, days: int) -> Floats:
    """Return the kWh of each hour of a home, shape ``(days, 24)``."""
    home = Premises(seed, "home", Weather("north"), UTC, heat_pump=seed % 4 == 0)
    minutes = np.stack([home.load(FIRST + day) for day in range(days)])
    return np.asarray(minutes.reshape(days, 24, 60).mean(axis=2))


def _expected(load: Floats) -> Floats:
    """Return the expected values of each home for the days after ``LEARN``, shape ``(homes, days - LEARN, 24)``.

    They are those of an agent with the shipped bundle: the means of its paths, with a part of its own that is
    solved of the days before and again each ``RENEWED`` days.
    """
    bundle = Bundle.open(BUNDLE, trust=TrustedKeys())
    manifest, functions = bundle.manifest, functions_of_profiles(bundle.manifest)
    days, found = load.shape[1], np.empty((len(load), load.shape[1] - LEARN, 24))

    def run(name: str, **given: Array) -> tuple[Array, ...]:
        return functions[name](**given)

    for home, one in zip(found, load, strict=True):
        series = Series(3600, [STREAM], capacity=24 * days)
        series.load_columns([SeriesColumn(STREAM, FIRST * 24 + np.arange(24 * days), one.ravel())])
        frame = ChannelFrame.of(series, manifest, zone=UTC)
        for first in range(LEARN, days, RENEWED):
            every = frame.origins()
            learned = IssuedWindows.of(run, Drawable(frame, every[every < 24 * (first - 1)]))
            p = with_own_part(run, learned, bundle.initial, manifest.spec())
            issued = 24 * np.arange(first, min(first + RENEWED, days)) - 1
            _, paths = run("day", p=p, x=frame.inputs(issued))
            told = np.maximum(frame.restore(paths.reshape(len(issued), -1), issued), 0.0)
            home[first - LEARN :][: len(issued)] = told.reshape(paths.shape).mean(axis=1)
    return found


def _opened(
    folder: Path, load: Floats, expected: Floats, silent: float, seed: int
) -> tuple[list[StoredSum], int]:
    """Return the opened sums of all days, and the bytes that a home sends on one."""
    draw = np.random.default_rng(seed)
    homes = [f"home-{n:03}" for n in range(len(load))]
    signers = [keys.from_seed(bytes([n, 7]) * 16) for n in range(len(load))]
    witness = WitnessKeys(keys.generate(), ExchangeKey.generate())
    found, sent = [], 0
    with WitnessRecord(folder / "witness.sqlite") as record:
        record.enrol(FLEET, [(h, s.public) for h, s in zip(homes, signers, strict=True)])
        sources: tuple[tuple[str, int, Floats], ...] = (
            ("history", 0, load[:, :-1]),
            ("tomorrow", LEARN, expected),
        )
        for source, first, values in sources:
            body = encode(_contract(source, witness.open.public))
            contract = FollowedContract.read(body)
            for day in range(values.shape[1]):
                period = (FIRST + first + day) * DAY
                present = draw.random(len(load)) >= silent
                for number, feeder in enumerate(FEEDERS):
                    members = [n for n in range(number, len(load), len(FEEDERS)) if present[n]]
                    if len(members) < LEAST:
                        continue  # such a sum is never opened
                    masked, files = [], []
                    for n in sorted(members, key=homes.__getitem__):
                        context = SumContext(FLEET, homes[n], contract.digest, period)
                        message = masked_message(values[n, day], contract, context, signers[n])
                        masked.append(unpacked(message.blob, 24))
                        files.append(
                            SumMember(homes[n], digest(message.blob), message.enc, message.proof)
                        )
                        sent = max(sent, 2 * len(encode(message)))
                    one = SumSet(FLEET, contract, body, period, feeder, tuple(files))
                    answer = read_answer(record.open(one.write(), witness))
                    answer.require_from(witness.sign.public)
                    total = values_of(opened_total(masked, answer), len(members), contract.terms)
                    found.append(
                        StoredSum(
                            contract=contract.terms.name, source=source, value=feeder,
                            period=period, step=HOUR, members=len(members),
                            expected=len(load) // len(FEEDERS), values=total, unit="kWh",
                            opened=period + DAY,
                        )
                    )  # fmt: skip
    return found, sent


def _contract(source: str, witness: bytes) -> SumContract:
    return SumContract(
        f"feeder-{source}", source, STREAM, "kWh", 24, 0.0, 50.0, 0.001, DAY,
        26 * HOUR, LEAST, witness, cohort="feeder",
    )  # fmt: skip


def _numbers(values: Floats) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def lines(found: Sequence[FeederResult]) -> Iterator[str]:
    """Yield the table of a demo."""
    yield f"{'feeder':<8}{'homes':>6}{'missing':>9}{'mean kW':>9}{'truth':>8}{'error':>8}{'covered':>9}"
    for one in found:
        forecast, truth = one.forecast, np.array(one.truth)
        covered = "-"
        if forecast.lower is not None and forecast.upper is not None:
            inside = (np.array(forecast.lower) <= truth) & (truth <= np.array(forecast.upper))
            covered = f"{inside.mean():.0%}"
        yield (
            f"{forecast.feeder:<8}{forecast.expected:>6}{forecast.missing:>9}"
            f"{np.mean(forecast.values):>9.2f}{truth.mean():>8.2f}{one.error:>8.2f}{covered:>9}"
        )
    yield f"error: over that of the week before; each home sends {found[0].bytes_a_day} bytes a day"


def pictures(found: Sequence[FeederResult], folder: Path) -> list[Path]:
    """Write a picture of each feeder: forecast, interval and what came; return the files."""
    files = []
    for one in found:
        path = folder / f"{one.forecast.feeder}.svg"
        path.write_text(day_chart(one.forecast, ZoneInfo("UTC"), ("what came", one.truth)), "utf-8")
        files.append(path)
    return files
