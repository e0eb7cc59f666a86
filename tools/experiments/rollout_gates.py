"""Judge staged rollouts by forecasts: how long does a version live that is worse by a known share?

Every device has its own readings and the device SDK's own comparison of two versions; reports cross as
messages, and the aggregator's own gate judges them day by day. Time is virtual; link, installation
and training are left out.

The model is trained on pooled windows of a fleet. Both versions are that model with a random
direction added to its parameters: the served one has 2 % more error than the model, and the new one
a stated multiple of the served one's. Both multiples are means over devices of ratios of absolute
errors, on windows of the four weeks before the rollout.

  python -m tools.experiments.rollout_gates --data DATA --runs 20
  python -m tools.experiments.rollout_gates --runs 3                # simulated readings
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.operations.rollout_control import RolloutGate, day_results
from aggregator.rollouts.stages import RolloutState
from aggregator.store.types import DeviceTrial
from edge_sdk import METHODS, Config
from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.forecasting.calendar_features import DAY
from edge_sdk.forecasting.forecast import rolling
from edge_sdk.forecasting.series import Series, SeriesRow
from edge_sdk.forecasting.trial_record import TrialRecord
from edge_sdk.forecasting.windows import ChannelFrame
from edge_sdk.shared_math.optim import adam, optimiser_step
from edge_sdk.training.model_runtime import ModelRuntime
from edge_sdk.training.run_role import RunRole
from edge_sdk.training.trial_version import TrialVersion
from edge_sdk.wire.contract.manifest import Manifest
from edge_sdk.wire.contract.parameter_layout import Vector
from edge_sdk.wire.protocol.codec import decode, encode
from edge_sdk.wire.protocol.messages import RolloutMessage, TrialMessage
from edge_sdk.wire.protocol.rollout_roles import role
from firmware_sim.direct.fleet import DirectFleet
from firmware_sim.samples import sample_set
from firmware_sim.scenario import Scenario

BUNDLE, LOAD = "load-week-1", "elec.import.energy"
SETS = ("building_bdg2_fl_az_ca", "building_resstock_ca_alameda")
MONDAY = 1_767_571_200  # 2026-01-05, the first reading of every device
BEFORE, LONGEST = 35, 24  # days of readings before a rollout; days of one
SHORT = 5  # days that are compared at first; most bad versions do not live longer
SERVED = 1.02  # error of the served version, as a multiple of the trained model's
TRAINED = 600  # steps of training
SPACING = 14  # weeks between the parts of one building's year that are devices of their own
SIGHTED = 24  # devices whose windows decide how long a direction is

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class VersionBundle:
    """A bundle with other first parameters than the shipped one, as a verified version has.

    Attributes:
        shipped: The shipped bundle, with its graphs.
        version: Number of this version.
        initial: Its parameters.
    """

    shipped: Bundle
    version: int
    initial: Vector

    @property
    def manifest(self) -> Manifest:
        """Manifest of this version."""
        return replace(self.shipped.manifest, version=self.version)

    @property
    def digest(self) -> bytes:
        """A digest that differs for each version."""
        return bytes([self.version]) * 32

    @property
    def graphs(self) -> Any:  # noqa: ANN401 - the bundle's own type
        """Graphs of the shipped bundle."""
        return self.shipped.graphs


@dataclass(frozen=True)
class Parts:
    """What all devices share: bundle, configuration and the plan of no mechanism."""

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
    """One device: its readings, and the windows before the rollout.

    Attributes:
        name: Its id.
        values: Hourly readings, ``BEFORE + LONGEST`` days from ``MONDAY`` on.
        parts: Bundle and configuration.
    """

    name: str
    values: Floats
    parts: Parts

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

    def error(self, p: Vector) -> float:
        """Return the mean absolute error of parameters on these windows, in units of the series."""
        graph: Any = self.parts.shipped.graphs["forecast"]
        found = rolling(graph, p, self.frame, self.origins, self.parts.levels)
        return float(np.nanmean(np.abs(found - self.frame.truth(self.origins))))

    def version(self, served: Vector, new: Vector, days: int) -> TrialVersion:
        """Return the new version beside the served one after some days of a rollout."""
        parts = self.parts
        present = ModelRuntime(
            replace(parts.config, id=self.name),
            VersionBundle(parts.shipped, 1, served),
            RunRole(1, "fedavg", tuple(parts.shipped.manifest.shared)),
            METHODS["fedavg"],
            self.series(BEFORE + days),
            parts.mechanism,
            scale=self.frame.scale,
        )
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


def scaled_to(
    meters: Sequence[Meter], p: Vector, direction: Vector, errors: Floats, multiple: float
) -> Vector:
    """Return the parameters along a direction whose error is a multiple of given errors.

    The multiple is the mean over devices of the ratio of errors, as everywhere here.

    Args:
        meters: Devices whose windows decide.
        p: Parameters where the direction begins.
        direction: Direction, of the length of the parameters.
        errors: Errors to compare with, one a device.
        multiple: Wanted mean ratio, above that of ``p``.
    """

    def ratio(length: float) -> float:
        at = (p + length * direction).astype(np.float32)
        return float(
            np.mean([one.error(at) / error for one, error in zip(meters, errors, strict=True)])
        )

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
        meters: The fleet.
        model: Trained parameters.
        seed: Seed of the two directions.
        multiple: Error of the new version as a multiple of the served one's.
    """
    rng = np.random.default_rng([11, seed])
    size = float(np.sqrt(np.mean(model**2)))
    one, other = (size * rng.standard_normal((2, len(model)))).astype(np.float32)
    some = meters[:SIGHTED]
    served = scaled_to(some, model, one, np.array([m.error(model) for m in some]), SERVED)
    errors = np.array([m.error(served) for m in some])
    return served, scaled_to(some, model, other, errors, multiple)


@dataclass(frozen=True, slots=True)
class RolloutEnd:
    """End of one rollout.

    Attributes:
        phase: Phase in which it ended, or ``run`` after ``LONGEST`` days.
        why: Reason of the last change.
        day: Days until then.
        stage: Stage at the end.
        served: Most devices that served the version on a day.
        multiple: Mean over members of the ratio of errors on the days of the rollout.
    """

    phase: str
    why: str
    day: int
    stage: int
    served: int
    multiple: float


@dataclass
class Member:
    """A device's part in the rollout, after the rules of ``RolloutMember``.

    Attributes:
        record: Its comparison of all days.
        since: First day on which it compares.
        state: What it does.
    """

    record: TrialRecord
    since: int
    state: str = "score"

    def report(self, of: bytes, plan: RolloutMessage, place: str, today: int) -> TrialMessage:
        """Return what the device sends after a day, and serve the version if that is due."""
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


def rollout(
    meters: Sequence[Meter], served: Vector, new: Vector, *, seed: int, gate: RolloutGate
) -> RolloutEnd:
    """Let a version out to a fleet, day by day, until the rollout is over."""
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
        for meter in meters:
            place = role(plan, state.stage, meter.name)
            if place == "none":
                continue
            length = SHORT if day < first + SHORT - 1 else LONGEST
            if meter.name not in members:
                members[meter.name] = Member(meter.compared(served, new, length), day)
            elif day == first + SHORT - 1:
                members[meter.name].record = meter.compared(served, new, length)
            report = members[meter.name].report(of, plan, place, day + 1)
            found = results.setdefault(meter.name, {})
            for back, word in enumerate(report.lost):
                if word:
                    found.setdefault(report.day - back, (word == 2, report.state == "serve"))
        most = max(most, sum(one.state == "serve" for one in members.values()))
        trials = [DeviceTrial(name, "score", day, found) for name, found in results.items()]
        is_drawn = any(role(plan, state.stage, one.name) == "serve" for one in meters)
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
    """Return all buildings of the sets."""
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
    """Rollouts of many fleets.

    Attributes:
        fleet: Makes the devices of a seed.
        gate: Gate of every rollout.
    """

    fleet: Callable[[int], list[Meter]]
    gate: RolloutGate = field(default_factory=RolloutGate)
    steps: int = TRAINED

    def ends(self, multiple: float, seeds: Sequence[int]) -> Iterator[RolloutEnd]:
        """Yield the end of a rollout for each seed: other devices, directions and waves.

        The model is trained once, on the fleet of the first seed.
        """
        model = trained(self.fleet(seeds[0]), seeds[0], self.steps)
        for seed in seeds:
            meters = self.fleet(seed)
            served, new = versions(meters, model, seed, multiple)
            yield rollout(meters, served, new, seed=seed, gate=self.gate)


def summary(name: str, ends: Sequence[RolloutEnd]) -> str:
    """Return the ends of one kind of version as a row of a table."""
    stopped = [one for one in ends if one.why == "harm"]
    days = sorted(one.day for one in stopped)
    multiples = [one.multiple for one in ends]
    cells: Mapping[str, str] = {
        "version": name,
        "error on the rollout's days": f"{min(multiples):.3f} to {max(multiples):.3f}",
        "rollouts": str(len(ends)),
        "stopped": str(len(stopped)),
        "within 3 days": str(sum(day <= 3 for day in days)),
        "days until the stop": f"{days[0]} to {days[-1]}" if days else "-",
        "most devices that served it": str(max(one.served for one in ends)),
        "reached the whole fleet": str(sum(one.phase == "done" for one in ends)),
    }
    return "| " + " | ".join(cells.values()) + " |"


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of the real sets (simulated readings)")
    parser.add_argument("--devices", type=int, default=200, help="devices of a fleet (200)")
    parser.add_argument("--runs", type=int, default=20, help="rollouts of each version (20)")
    parser.add_argument("--first", type=int, default=0, help="first seed (0)")
    parser.add_argument(
        "--error", type=float, nargs="+", default=[1.1, 1.0], help="multiples (1.1 1.0)"
    )
    args = parser.parse_args()
    parts = Parts.load()

    def fleet(seed: int) -> list[Meter]:
        if args.data:
            return recorded(args.data, args.devices, seed, parts)
        return simulated(args.devices, seed, parts)

    experiment = Experiment(fleet)
    seeds = range(args.first, args.first + args.runs)
    rows = []
    for multiple in args.error:
        ends = []
        for end in experiment.ends(multiple, seeds):
            ends.append(end)
            print(multiple, end, flush=True)
        rows.append(summary(f"{multiple:g} x the error", ends))
    print("\n".join(rows))


if __name__ == "__main__":
    main()
