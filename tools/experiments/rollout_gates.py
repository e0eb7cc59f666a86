"""Judge staged rollouts by forecasts: the lifetime of a version that is worse by a known share.

Every device has its own readings and the device SDK's own comparison of two versions; reports cross as
messages, and the aggregator's own gate judges them day by day. Time is virtual; link, installation
and training are left out.

The model is trained on pooled windows of a fleet before the rollout. Both versions are that model with
a random direction added to its parameters: the served one has 2 % more error than the model, and the
new one a stated multiple of the served one's. Both multiples are means over devices of ratios of
absolute errors on the days of the rollout. Of two versions with the same error, either is the
served one in a rollout of its own.

  python -m tools.experiments.rollout_gates --data DATA --docs docs
  python -m tools.experiments.rollout_gates --error 1.1 --first 0 --runs 3     # simulated

Every gate of ``GATES`` judges the comparisons of worse versions, the first one those of equal
ones. ``--records FOLDER`` keeps the comparisons.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.extensions.rollouts.rollout_control import RolloutGate, day_results
from aggregator.extensions.rollouts.rollout_table import DeviceTrial
from aggregator.extensions.rollouts.stages import RolloutState
from edge_sdk import Config
from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.extensions.rollouts.messages import RolloutMessage, TrialMessage
from edge_sdk.extensions.rollouts.rollout_roles import role
from edge_sdk.extensions.rollouts.trial_record import TrialRecord
from edge_sdk.extensions.rollouts.trial_version import TrialVersion
from edge_sdk.forecasting.calendar_features import DAY
from edge_sdk.forecasting.forecast import least
from edge_sdk.forecasting.series import Series, SeriesRow
from edge_sdk.forecasting.windows import ChannelFrame
from edge_sdk.protocol.codec import decode, encode
from edge_sdk.protocol.contract.manifest import Manifest
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.shared_math.optim import adam, optimiser_step
from edge_sdk.training.model_runtime import ModelRuntime
from edge_sdk.training.run_role import RunRole, RunShell
from firmware_sim.direct.fleet import DirectFleet
from firmware_sim.samples import sample_set
from firmware_sim.scenario import Scenario
from tools.experiments.marked_block import replace_block

BUNDLE, LOAD = "load-week-1", "elec.import.energy"
SETS = ("building_bdg2_fl_az_ca", "building_resstock_ca_alameda")
MONDAY = 1_767_571_200  # 2026-01-05, the first reading of every device
BEFORE, LONGEST = 35, 24  # days of readings before a rollout; days of one
SERVED = 1.02  # error of the served version, as a multiple of the trained model's
TRAINED = 600  # steps of training
SPACING = 14  # weeks between the parts of one building's year that are devices of their own

MARKER = "<!-- rollout gates -->"
GATES = (RolloutGate(), RolloutGate(shadow=0.5, margin=0.02))  # the default, and the former default

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class VersionBundle:
    """A bundle with other first parameters than the shipped one, as a verified version has."""

    shipped: Bundle
    version: int
    initial: Vector

    @property
    def manifest(self) -> Manifest:
        return replace(self.shipped.manifest, version=self.version)

    @property
    def digest(self) -> bytes:
        return bytes([self.version]) * 32

    @property
    def graphs(self) -> Any:  # noqa: ANN401 - the bundle's own type
        return self.shipped.graphs


@dataclass(frozen=True)
class Parts:
    """Parts that all devices share: bundle, configuration and the plan of no mechanism."""

    shipped: Bundle
    config: Config
    mechanism: Any
    levels: tuple[float, ...]

    @classmethod
    def load(cls) -> Parts:
        """Load the shipped bundle and the configuration of a device of the simulator."""
        fleet = DirectFleet.of(Scenario("rollouts", bundle=BUNDLE, devices=1), sample_set("homes"))
        (device,) = fleet.simulation().devices.values()
        shipped = Bundle.open(BUNDLE, trust=TrustedKeys())
        return cls(shipped, fleet.config, device.learner.mechanism, device.learner.levels)


@dataclass
class Meter:
    """One device: its readings, and the windows before the rollout."""

    name: str
    values: Floats  # hourly readings, ``BEFORE + LONGEST`` days from ``MONDAY`` on
    parts: Parts  # bundle and configuration

    def series(self, days: int) -> Series:
        """Return the readings of the first days."""
        number = 24 * days
        made = Series(3600, (LOAD,), capacity=number)
        first = MONDAY // 3600
        made.load(SeriesRow(LOAD, first + i, float(v)) for i, v in enumerate(self.values[:number]))
        return made

    @cached_property
    def frame(self) -> ChannelFrame:
        """Channels of the days before the rollout."""
        return ChannelFrame.of(self.series(BEFORE), self.parts.shipped.manifest)

    @cached_property
    def origins(self) -> NDArray[np.int64]:
        """Every fourth window of the newest four weeks before the rollout."""
        return np.asarray(self.frame.origins()[-4 * 7 * 24 :: 4])

    @cached_property
    def whole(self) -> ChannelFrame:
        """Channels of all days, on the scale of the days before the rollout."""
        manifest, scale = self.parts.shipped.manifest, self.frame.scale
        return ChannelFrame.of(self.series(BEFORE + LONGEST), manifest, scale=scale)

    @cached_property
    def judged(self) -> NDArray[np.int64]:
        """Every fourth window of the days of the rollout."""
        return np.asarray(self.whole.origins()[-LONGEST * 24 :: 4])

    def version(self, served: Vector, new: Vector, days: int) -> TrialVersion:
        """Return the new version beside the served one after some days of a rollout."""
        parts = self.parts
        present = ModelRuntime(
            replace(parts.config, id=self.name),
            VersionBundle(parts.shipped, 1, served),
            RunRole(1, "fedavg", tuple(parts.shipped.manifest.shared)),
            self.series(BEFORE + days),
            parts.mechanism,
            RunShell(),
        )
        present.scale = self.frame.scale
        return TrialVersion.of(VersionBundle(parts.shipped, 2, new), present)

    def compared(self, served: Vector, new: Vector, days: int) -> TrialRecord:
        """Compare both versions on the first days of a rollout; day by day gives the same sums."""
        upto = MONDAY // 3600 + 24 * BEFORE - 1
        return self.version(served, new, days).compared(TrialRecord.empty(), upto, served)


def trained(meters: Sequence[Meter], seed: int, steps: int = TRAINED) -> Vector:
    """Return parameters after some steps of Adam on windows of all devices before the rollout."""
    rng = np.random.default_rng([7, seed])
    parts = meters[0].parts
    graph: Any = parts.shipped.graphs["gradient"]
    p, transform = parts.shipped.initial.copy(), adam(2e-3)
    state = transform.init(p)
    for _ in range(steps):
        chosen = [meters[i] for i in rng.integers(len(meters), size=16)]
        drawn = [rng.choice(one.origins, 8) for one in chosen]
        x = np.concatenate([one.frame.inputs(at) for one, at in zip(chosen, drawn, strict=True)])
        y = np.concatenate([one.frame.targets(at) for one, at in zip(chosen, drawn, strict=True)])
        g = graph(p=p, x=x, y=y)[1]
        p, state = optimiser_step(transform, p, g, state)
    return p


@dataclass
class JudgedWindows:
    """The windows of a fleet on the days of the rollout, forecast in one call."""

    meters: Sequence[Meter]

    @cached_property
    def inputs(self) -> NDArray[np.float32]:
        return np.concatenate([one.whole.inputs(one.judged) for one in self.meters])

    def errors(self, p: Vector) -> Floats:
        """Return each device's mean absolute error, in units of its series, ``(devices,)``."""
        parts = self.meters[0].parts
        graph: Any = parts.shipped.graphs["forecast"]
        horizon, levels = self.meters[0].frame.window.horizon, list(parts.levels)
        x = self.inputs
        calls = [np.asarray(graph(p=p, x=x[i : i + 2048])[0]) for i in range(0, len(x), 2048)]
        yhat = np.concatenate(calls).reshape(len(x), horizon, len(levels))
        median, found, start = np.sort(yhat, axis=2)[:, :, levels.index(0.5)], [], 0
        for one in self.meters:
            here = median[start : start + len(one.judged)]
            start += len(one.judged)
            values = np.maximum(one.whole.restore(here, one.judged), least(one.whole))
            found.append(np.nanmean(np.abs(values - one.whole.truth(one.judged))))
        return np.array(found)

    def scaled_to(self, p: Vector, direction: Vector, errors: Floats, multiple: float) -> Vector:
        """Return the parameters along a direction whose error is a multiple of given errors.

        The multiple is the mean over devices of the ratio of errors, as everywhere here.

        Args:
            p: Parameters where the direction begins.
            multiple: Wanted mean ratio, above that of ``p``.
        """

        def ratio(length: float) -> float:
            at = np.asarray(p + length * direction, np.float32)
            return float(np.mean(self.errors(at) / errors))

        low, high = 0.0, 0.05
        while ratio(high) < multiple:
            low, high = high, 2.0 * high
        for _ in range(9):
            middle = (low + high) / 2.0
            low, high = (middle, high) if ratio(middle) < multiple else (low, middle)
        return np.asarray(p + high * direction, np.float32)


def versions(
    meters: Sequence[Meter], model: Vector, seed: int, multiple: float
) -> tuple[Vector, Vector]:
    """Return the parameters of the served and of the new version.

    Args:
        seed: Seed of the two directions.
        multiple: Error of the new version as a multiple of the served one's.
    """
    rng = np.random.default_rng([11, seed])
    size = float(np.sqrt(np.mean(model**2)))
    one, other = (size * rng.standard_normal((2, len(model)))).astype(np.float32)
    windows = JudgedWindows(meters)
    served = windows.scaled_to(model, one, windows.errors(model), SERVED)
    return served, windows.scaled_to(model, other, windows.errors(served), multiple)


@dataclass(frozen=True, slots=True)
class RolloutEnd:
    """End of one rollout."""

    phase: str  # phase in which it ended, or ``run`` after ``LONGEST`` days
    why: str  # reason of the last change
    day: int  # days until then
    stage: int
    served: int  # most devices that served the version on a day
    multiple: float  # mean over members of the ratio of errors on the days of the rollout


@dataclass
class Member:
    """A device's part in the rollout, after the rules of ``RolloutMember``."""

    record: TrialRecord  # its comparison of all days
    since: int  # first day on which it compares
    state: str = "score"

    def report(self, of: bytes, plan: RolloutMessage, place: str, today: int) -> TrialMessage:
        """Return the device's report after a day, and serve the version if that is due."""
        kept = self.record.days >= self.since
        record = TrialRecord(self.record.days[kept], self.record.sums[kept])
        is_gross = record.is_gross(today)
        if self.state == "serve" and is_gross:
            self.state = "returned"
        words = record.words(today, plan.margin)
        sent = TrialMessage(of, self.state, today - 1, words)  # type: ignore[arg-type]
        is_due = place == "serve" and self.state == "score" and not is_gross
        if is_due and len(record.complete(today)) >= plan.days:
            self.state = "serve"
        return decode(TrialMessage, encode(sent))


Records = Mapping[str, TrialRecord]


def turned(records: Records) -> Records:
    """Return the comparisons with the served version in the place of the new one.

    >>> one = TrialRecord(np.array([5]), np.array([[1.0, 2.0]]))
    >>> turned({"meter-000": one})["meter-000"].sums.tolist()
    [[2.0, 1.0]]
    """
    return {name: TrialRecord(one.days, one.sums[:, ::-1]) for name, one in records.items()}


def rollout(records: Records, *, seed: int, gate: RolloutGate) -> RolloutEnd:
    """Let a version out to a fleet, day by day, until the rollout is over.

    Args:
        records: Each device's comparison of all days of the rollout.
        seed: Seed of the salt, which draws the waves.
        gate: Waves and test.
    """
    salt = np.random.default_rng([13, seed]).bytes(16)
    plan = RolloutMessage(
        1, BUNDLE, 2, bytes([2]) * 32, 900, bytes([1]) * 32, salt, gate.waves, gate.shadow,
        gate.days, gate.least, gate.margin, gate.bound,
    )  # fmt: skip
    of, first = bytes(16), MONDAY // DAY + BEFORE
    members: dict[str, Member] = {}
    results: dict[str, dict[int, tuple[bool, bool]]] = {}
    state, most, day = RolloutState(since=first - 1), 0, first
    for day in range(first, first + LONGEST - 1):
        for name, record in records.items():
            place = role(plan, state.stage, name)
            if place == "none":
                continue
            if name not in members:
                members[name] = Member(record, day)
            report = members[name].report(of, plan, place, day + 1)
            found = results.setdefault(name, {})
            for back, word in enumerate(report.lost):
                if word:
                    found.setdefault(report.day - back, (word == 2, report.state == "serve"))
        most = max(most, sum(one.state == "serve" for one in members.values()))
        trials = [DeviceTrial(name, "score", day, found) for name, found in results.items()]
        is_drawn = any(role(plan, state.stage, name) == "serve" for name in records)
        state = state.advanced(plan, day_results(plan, state, trials), day + 1, drawn=is_drawn)
        if state.is_over:
            break
    sums = [one.record.sums[one.record.days <= day].sum(axis=0) for one in members.values()]
    multiple = float(np.mean([new_ / served_ for served_, new_ in sums if served_ > 0.0]))
    return RolloutEnd(state.phase, state.why, day + 1 - first, state.stage, most, multiple)


def simulated(number: int, seed: int, parts: Parts) -> list[Meter]:
    """Return devices with made-up readings: a daily and a weekly shape, and noise with a memory."""
    hours = np.arange(24 * (BEFORE + LONGEST))
    meters = []
    for i in range(number):
        rng = np.random.default_rng([17, seed, i])
        phase, size, slow = rng.uniform(0, 24), rng.lognormal(0.0, 0.6), np.zeros(len(hours))
        shocks = rng.standard_t(5, len(hours))
        for at in range(1, len(hours)):
            slow[at] = 0.7 * slow[at - 1] + 0.15 * shocks[at]
        shape = 1.0 + 0.5 * np.sin(2 * np.pi * (hours - phase) / 24)
        weekend = np.where(hours // 24 % 7 >= 5, 1.2, 1.0)
        meters.append(Meter(f"meter-{i:03}", size * shape * weekend * np.exp(slow), parts))
    return meters


@cache
def buildings(folder: Path) -> list[Any]:
    from tools.experiments.buildings import load  # noqa: PLC0415 - pandas

    return [one for name in SETS for one in load(folder, name)]


def recorded(folder: Path, number: int, seed: int, parts: Parts) -> list[Meter]:
    """Return devices with parts of real years: a building is several devices, at other times of its year."""
    rng, found = np.random.default_rng([19, seed]), buildings(folder)
    order = [found[i] for i in rng.permutation(len(found))]
    shift = {one.name: int(rng.integers(52)) for one in found}
    meters: list[Meter] = []
    length = 24 * (BEFORE + LONGEST)
    for turn in range(3):
        for one in order:
            start = datetime.fromtimestamp(one.start, UTC)
            monday = 24 * ((7 - start.weekday()) % 7) - start.hour
            weeks = (len(one.columns[LOAD]) - length - monday) // 168
            at = monday + 168 * ((shift[one.name] + SPACING * turn) % weeks)
            values = one.columns[LOAD][at : at + length]
            is_usable = np.isfinite(values).mean() > 0.9 and np.nanstd(values[: 24 * BEFORE]) > 0.0
            if is_usable and len(meters) < number:
                meters.append(Meter(f"meter-{len(meters):03}", values, parts))
    return meters


@dataclass
class Experiment:
    """Rollouts of many fleets."""

    fleet: Callable[[int], list[Meter]]  # makes the devices of a seed
    gate: RolloutGate = field(default_factory=RolloutGate)
    steps: int = TRAINED
    # folder of comparisons that were made before, and of new ones; None keeps none
    kept: Path | None = None

    @cached_property
    def model(self) -> Vector:
        """The model, trained once, on the fleet of seed 0."""
        return trained(self.fleet(0), 0, self.steps)

    def records(self, multiple: float, seed: int) -> Records:
        """Return each device's comparison of the two versions of a seed."""
        path = self.kept and self.kept / f"records-{multiple}-{seed}.npy"
        if path and path.exists():
            return from_array(np.load(path))
        meters = self.fleet(seed)
        served, new = versions(meters, self.model, seed, multiple)
        found = {one.name: one.compared(served, new, LONGEST) for one in meters}
        if path:
            np.save(path, to_array(found))
        return found

    def ends(self, multiple: float, seeds: Sequence[int]) -> Iterator[RolloutEnd]:
        """Yield the ends of rollouts for each seed: other devices, directions and waves.

        Equal versions have two rollouts, as either can be the served one.
        """
        for seed in seeds:
            records = self.records(multiple, seed)
            yield rollout(records, seed=seed, gate=self.gate)
            if multiple == 1.0:
                yield rollout(turned(records), seed=seed, gate=self.gate)


def to_array(records: Records) -> Floats:
    """Return comparisons as an array, ``(devices, LONGEST, 2)``; NaN on a day without a result.

    >>> first = MONDAY // DAY + BEFORE
    >>> found = from_array(to_array({"meter-000": TrialRecord(np.array([first + 2]), np.ones((1, 2)))}))
    >>> (found["meter-000"].days - first).tolist(), found["meter-000"].sums.tolist()
    ([2], [[1.0, 1.0]])
    """
    found, first = np.full((len(records), LONGEST, 2), np.nan), MONDAY // DAY + BEFORE
    for i, one in enumerate(records.values()):
        is_within = (one.days >= first) & (one.days < first + LONGEST)
        found[i, one.days[is_within] - first] = one.sums[is_within]
    return found


def from_array(found: Floats) -> Records:
    """Return comparisons from a result of ``to_array``."""
    first, records = MONDAY // DAY + BEFORE, {}
    for i, sums in enumerate(found):
        days = np.flatnonzero(np.isfinite(sums).all(axis=1))
        records[f"meter-{i:03}"] = TrialRecord(first + days, sums[days])
    return records


def upper_bound(found: int, of: int) -> float:
    """Return the exact upper 95 % bound of a rate: the rate at which so few are one case in twenty.

    >>> round(upper_bound(0, 100), 3), round(upper_bound(1, 100), 3)
    (0.03, 0.047)
    """
    if found == of:
        return 1.0
    low, high = found / of, 1.0
    for _ in range(60):
        rate = (low + high) / 2.0
        terms = (math.comb(of, k) * rate**k * (1.0 - rate) ** (of - k) for k in range(found + 1))
        low, high = (rate, high) if math.fsum(terms) > 0.05 else (low, rate)
    return high


def summary(name: str, gate: RolloutGate, ends: Sequence[RolloutEnd]) -> dict[str, str]:
    """Return the ends of one kind of version under a gate, as a row of a table."""
    stopped = [one for one in ends if one.why == "harm"]
    days = sorted(one.day for one in stopped)
    least_stopped = 1.0 - upper_bound(len(ends) - len(stopped), len(ends))
    most_stopped = upper_bound(len(stopped), len(ends))
    return {
        "version": name,
        "shadow, margin": f"{100 * gate.shadow:g} %, {100 * gate.margin:g} %",
        "rollouts": str(len(ends)),
        "stopped": str(len(stopped)),
        "within 3 days": str(sum(day <= 3 for day in days)),
        "days until the stop": f"{days[0]} to {days[-1]}" if days else "-",
        "most devices that served it": str(max(one.served for one in ends)),
        "reached the whole fleet": str(sum(one.phase == "done" for one in ends)),
        "rate of stops, lower and upper 95 % bound": f"{least_stopped:.3f}, {most_stopped:.3f}",
    }


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return rows of one kind as a table."""
    lines = [tuple(rows[0]), ("---", *["---:"] * (len(rows[0]) - 1))]
    lines += [tuple(row.values()) for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of the real sets (simulated readings)")
    parser.add_argument("--devices", type=int, default=200, help="devices of a fleet (200)")
    for name, kind, values, words in (
        ("--error", float, [1.1, 1.0, 1.1, 1.0, 1.0], "multiples, one a row"),
        ("--first", int, [0, 0, 50, 50, 66], "first seeds"),
        ("--runs", int, [20, 50, 7, 7, 7], "numbers of fleets"),
    ):
        shown = " ".join(map(str, values))
        parser.add_argument(name, type=kind, nargs="+", default=values, help=f"{words} ({shown})")
    parser.add_argument("--records", type=Path, help="folder of devices' comparisons")
    parser.add_argument("--docs", type=Path, help="folder of the pages, to write the table")
    args = parser.parse_args()
    parts = Parts.load()

    def fleet(seed: int) -> list[Meter]:
        if args.data:
            return recorded(args.data, args.devices, seed, parts)
        return simulated(args.devices, seed, parts)

    rows = []
    with TemporaryDirectory() as folder:
        kept = args.records or Path(folder)
        kept.mkdir(parents=True, exist_ok=True)
        experiment = Experiment(fleet, kept=kept)
        for multiple, first, runs in zip(args.error, args.first, args.runs, strict=True):
            seeds = range(first, first + runs)
            for gate in GATES if multiple > 1.0 else GATES[:1]:
                ends = []
                for end in replace(experiment, gate=gate).ends(multiple, seeds):
                    ends.append(end)
                    print(multiple, end, flush=True)
                name = f"{multiple:g} x the error, fleets {first} to {first + runs - 1}"
                rows.append(summary(name, gate, ends))
    print(table(rows))
    if args.docs:
        replace_block(args.docs / "measurements.md", MARKER, table(rows))


if __name__ == "__main__":
    main()
