"""``gridfed-sim fleet``: one run of many devices, in separate processes or all in this one."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from firmware_sim.attacks.attack_plan import HONEST, AttackPlan, AttackRole, AttackRoles
from firmware_sim.fleet.federation import (
    FINISH_TIMEOUT,
    Federation,
    Progress,
    TooSlow,
    free_port,
    require_broker,
    start_broker,
)
from firmware_sim.fleet.in_process import (
    Cost,
    Fleet,
    OwnProcess,
    over_mqtt,
    peak_bytes,
    populate,
    processor_seconds,
    resident_bytes,
    uncollected,
)
from firmware_sim.fleet.power_failures import PowerFailures
from firmware_sim.fleet.processes import ProcessGroup
from firmware_sim.fleet.run_files import Prepared, join, prepare
from firmware_sim.reports.credit_report import CreditReport, read_credit
from firmware_sim.reports.evaluation import served_by, traffic_of
from firmware_sim.reports.forecast_errors import Errors, errors
from firmware_sim.reports.progress_display import Display
from firmware_sim.results import Traffic
from firmware_sim.samples import SampleSet
from firmware_sim.scenario import Scenario

MOST_PROCESSES = 16  # largest number of devices that have a process each by default


@dataclass
class FleetRun:
    """One run in one folder."""

    scenario: Scenario
    samples: SampleSet
    out: Path
    shown: Display
    is_in_process: bool  # true runs all devices in this process, instead of one each
    broker: str = ""  # address of a running broker, or empty to start one of ``kind``
    kind: str = "auto"
    # configuration of a running aggregator to join, instead of a new one
    aggregator: Path | None = None
    limit: float = 600.0  # time limit of the run in seconds
    seed: int = 0  # seed of the fleet's own draws
    name: str = "fleet"
    fleet: str = "sim"  # name of the fleet, in topics and signatures
    attack_plan: AttackPlan | None = None  # attack on the run; None without one
    # ids of the devices whose forecasts are evaluated at the end; none in a run with separate
    # processes
    evaluated: tuple[str, ...] = ()
    errors: Errors | None = None  # errors of the evaluated devices
    # credit report, where the method weighs models for one another
    credit: CreditReport | None = None
    # counters of the devices of this process, summed
    counts: Counter[str] = field(default_factory=Counter)
    refused: dict[str, int] = field(default_factory=dict)
    stall: float = math.inf  # seconds without a moved model after which the run ends
    outages: float = 0.0  # power failures of any device a minute, where each is a process
    power_failures: int = 0
    moved: int = 0  # version of the model at the last look
    # peak memory and processor seconds of one device's process, as medians
    device_process: dict[str, float] = field(default_factory=dict)
    # set-up and memory of this process, where it runs the devices
    own_process: OwnProcess | None = None
    # number of device processes that serve each candidate at the end
    served: Counter[str] = field(default_factory=Counter)

    def run(self) -> Cost:
        """Start the missing programs, run, stop them, and return the cost.

        Raises:
            Died: A program ended in failure.
            TooSlow: The run did not end in time.
        """
        given = require_broker(self.broker) if self.broker else ""
        with ProcessGroup(self.out / "logs") as family:
            url = given or start_broker(family, self.out / "broker", self.kind)
            self.shown.note(f"broker at {url}; logs in {self.out / 'logs'}")
            prepared = self._prepared(url)
            run = Federation(prepared, self.scenario.run.rounds, family)
            if self.aggregator is None:
                run.start_aggregator()
            try:
                return self._inside(run) if self.is_in_process else self._outside(run)
            finally:
                run.stop()

    def _prepared(self, url: str) -> Prepared:
        if self.aggregator is not None:
            return join(
                self.out,
                self.aggregator,
                self.scenario,
                self.samples,
                broker=url,
                choose_best=not self.is_in_process,
            )
        return prepare(
            self.out / "fleet",
            self.fleet,
            self.scenario,
            self.samples,
            broker=url,
            page=f"127.0.0.1:{free_port()}",
            choose_best=not self.is_in_process,  # in one process it would be counted as rounds
        )

    def _inside(self, run: Federation) -> Cost:
        """Run every device in this thread."""
        devices = run.prepared.devices
        with Fleet() as fleet:
            connect = over_mqtt(self.seed)
            role = self._roles([device.id for device in devices])
            before, begun = resident_bytes(), processor_seconds()
            populate(fleet, devices, self.samples, self.scenario, connect, role=role)
            set_up = processor_seconds() - begun
            self.shown.note(f"{len(fleet.clients)} devices are set up in this process")
            meter = RoundCosts(run, processor_seconds)
            try:
                with uncollected():
                    self._watch(run, meter, lambda: fleet.serve(0.02))
                    until = time.monotonic() + FINISH_TIMEOUT
                    while time.monotonic() < until and not self._is_over(fleet):
                        fleet.serve(0.02)  # each takes the final model over: bytes of a whole run
            finally:
                if self.evaluated:
                    self.errors = errors(
                        fleet, devices, self.evaluated, self.samples, self.scenario
                    )
                    self.credit = read_credit(run.prepared.aggregator, self.out)
            self.own_process = OwnProcess.of(
                len(fleet.clients), set_up, before, peak_bytes(), fleet.store_bytes()
            )
            for client in fleet.clients:
                self.counts.update(client.status()["counts"])
            self.refused = with_told(self.refused, self.counts)
            return meter.cost(fleet.traffic())

    def _roles(self, ids: Sequence[str]) -> Callable[[str], AttackRole]:
        if self.attack_plan is None:
            return lambda _device: HONEST
        return AttackRoles.of(self.attack_plan, ids, time.monotonic).role

    def _is_over(self, fleet: Fleet) -> bool:
        wanted = set(self.evaluated) or {client.config.id for client in fleet.clients}
        return all(client.is_done for client in fleet.clients if client.config.id in wanted)

    def _outside(self, run: Federation) -> Cost:
        """Start one process a device, and wait until each has the final model."""
        run.start_devices()
        meter = RoundCosts(run, lambda: sum(one.measure() for one in run.devices))
        power = PowerFailures(run, self.outages, self.seed)
        self._watch(run, meter, power.serve)
        self.power_failures = power.count
        until = time.monotonic() + FINISH_TIMEOUT
        for device in run.devices:
            device.wait(max(0.0, until - time.monotonic()))
        run.family.stop(run.devices)
        self.served.update(served_by(run.devices))
        self.device_process = {
            "peak_mib": median(device.peak_kb / 1024 for device in run.devices),
            "cpu_s": median(device.cpu for device in run.devices),
        }
        return meter.cost(list(traffic_of(run.prepared.devices, run.devices).values()))

    def _watch(self, run: Federation, meter: RoundCosts, serve: Callable[[], None]) -> None:
        moved = time.monotonic()
        for now in run.watch(self.limit, serve):
            meter.see(now)
            if now.version > self.moved:
                moved = time.monotonic()
            elif time.monotonic() - moved > self.stall:
                raise TooSlow(
                    f"no round closed for {self.stall:.0f} s, after {now.version} of {now.rounds}"
                )
            self.refused, self.moved = now.refused, now.version
            self.shown.update(self.name, "done" if now.is_done else "training", now)


def with_told(refused: Mapping[str, int], counts: Mapping[str, int]) -> dict[str, int]:
    """Return refusals by reason; the aggregator's page may be a second older than its devices.

    Args:
        refused: Those of the page.
        counts: Counters of the devices, summed.

    >>> with_told({"LATE": 3}, {"refused": 3, "refused LATE": 2, "refused WRONG_SPEC": 1})
    {'LATE': 3, 'WRONG_SPEC': 1}
    """
    found = dict(refused)
    for name, count in counts.items():
        kind, _, reason = name.partition(" ")
        if kind == "refused" and reason:
            found[reason] = max(count, found.get(reason, 0))
    return found


@dataclass
class RoundCosts:
    """Measures the cost of the rounds, from the first measurement after a round with all devices.

    A run without a measurement between its first and last round is counted with its start.
    """

    run: Federation
    # returns the processor seconds that all devices have used so far
    devices_cpu: Callable[[], float]
    _begun: tuple[float, float, float, int] | None = None
    _last: tuple[float, float, float, int] = (0.0, 0.0, 0.0, 0)
    _made: float = field(default_factory=time.monotonic)

    def see(self, now: Progress) -> None:
        """Record a measurement."""
        aggregator = self.run.aggregator
        own = 0.0 if aggregator is None else aggregator.measure()
        self._last = (time.monotonic(), self.devices_cpu(), own, now.version)
        is_whole = now.present >= len(self.run.prepared.devices)
        if self._begun is None and is_whole and 0 < now.version < now.rounds:
            self._begun = self._last

    def cost(self, traffic: list[Traffic]) -> Cost:
        """Return the cost of the recorded rounds; bytes are those of the whole run."""
        begun = self._begun or (self._made, 0.0, 0.0, 0)
        seconds, devices, aggregator, moved = (
            last - first for last, first in zip(self._last, begun, strict=True)
        )
        count = len(self.run.prepared.devices)
        rounds = self._last[3]
        share = rounds / moved if moved else 1.0  # of rounds that closed before the first look
        return Cost(
            devices=count,
            rounds=rounds,
            wall=seconds * share,
            device_cpu=devices * share,
            aggregator_cpu=aggregator * share,
            up=sum(one.up for one in traffic),
            down=sum(one.down for one in traffic),
        )
