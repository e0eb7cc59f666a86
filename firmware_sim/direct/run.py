"""Run a scenario directly, with progress and time limit, and return its outcome."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from firmware_sim.attacks.attack_plan import AttackPlan
from firmware_sim.direct.fleet import DirectFleet
from firmware_sim.direct.server import DirectRound
from firmware_sim.direct.simulation import USUAL, ArrivalPlan, DirectSimulation
from firmware_sim.direct.trainers import WorkerTrainer
from firmware_sim.fleet.federation import Progress, TooSlow
from firmware_sim.fleet.in_process import Cost, processor_seconds, uncollected
from firmware_sim.reports.credit_report import CreditReport
from firmware_sim.reports.forecast_errors import Errors
from firmware_sim.reports.progress_display import Display
from firmware_sim.results import short
from firmware_sim.samples import SampleSet
from firmware_sim.scenario import Scenario

SHOW_EVERY = 0.25  # seconds between two updates of the display


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 on a system without ``/proc``."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class DirectResult:
    """Result of a direct simulation."""

    devices: int
    rounds: tuple[DirectRound, ...]  # rounds that ended, in order
    updates: int  # number of updates that the devices sent
    setup: float  # seconds until the first round was opened
    seconds: float
    processor: float  # processor seconds of the rounds
    virtual: float  # virtual seconds of the rounds
    up: int  # bytes of the updates' vectors; ``down``: of the models that the devices received
    down: int
    digest: str  # digest of the server half's final state, as the aggregator records it
    refused: dict[str, int]  # number of refused updates, by reason
    # bytes by which the process grew from before the set-up to after the last round, and what its
    # workers share with no other process; 0 where the system has no such number
    memory: int = 0

    @property
    def rate(self) -> float:
        """Return the updates a second."""
        return self.updates / self.seconds if self.seconds else 0.0

    @property
    def model(self) -> str:
        """Return the SHA-256 of the final model; empty before the first round ended."""
        return self.rounds[-1].model if self.rounds else ""

    @property
    def version(self) -> int:
        return self.rounds[-1].version if self.rounds else 0

    @property
    def cost(self) -> Cost:
        """Return the cost; the server's part of the processor time is counted with the devices'."""
        return Cost(
            self.devices, self.version, self.seconds, self.processor, 0.0, self.up, self.down
        )

    def text(self) -> str:
        """Return the result as four lines."""
        each = 1e3 * self.processor / self.updates if self.updates else 0.0
        refused = ", ".join(f"{name} {count}" for name, count in sorted(self.refused.items()))
        return (
            f"{self.devices} devices, {self.version} rounds, {self.updates} updates in"
            f" {self.seconds:.2f} s: {self.rate:.0f} updates a second, {each:.2f} ms processor each\n"
            f"set-up {self.setup:.2f} s ({1e3 * self.setup / self.devices:.1f} ms a device),"
            f" {short(self.memory / self.devices)} a device,"
            f" {self.virtual:.1f} virtual seconds, {short(self.up)} up, {short(self.down)} down\n"
            f"state {self.digest}\nmodel {self.model}" + (f"\nrefused {refused}" if refused else "")
        )


@dataclass
class DirectRun:
    """One direct run, with the attributes of a ``FleetRun`` that a trial reads."""

    scenario: Scenario
    samples: SampleSet
    shown: Display
    limit: float = 600.0  # time limit in seconds
    seed: int = 0  # seed of the order of arrival
    name: str = "direct"
    attack_plan: AttackPlan | None = None  # attack on the run; None without one
    evaluated: tuple[str, ...] = ()  # ids of the devices whose forecasts are evaluated at the end
    errors: Errors | None = None
    credit: CreditReport | None = None  # none: a credit report needs the aggregator's store
    refused: dict[str, int] = field(default_factory=dict)  # number of refused updates, by reason
    moved: int = 0  # number of times the model moved
    disagreements: tuple[float, ...] = ()  # empty: the devices have one model
    result: DirectResult | None = None
    # number of processes that train the devices; 0 trains them in this thread. Devices of an attack
    # know one another, so a run with an attack has none.
    workers: int = 0
    arrivals: ArrivalPlan = USUAL
    _fleet: DirectFleet | None = None

    def run(self) -> Cost:
        """Run once; ``result`` and ``errors`` are set afterwards.

        Raises:
            SettingsError: The run needs a broker or a store.
            TooSlow: It did not end within the time limit.
            ProgramDied: A worker process ended before its work did.
        """
        begun, before = time.monotonic(), resident_bytes()
        if self._fleet is None:
            self._fleet = DirectFleet.of(
                self.scenario,
                self.samples,
                seed=self.seed,
                attack_plan=self.attack_plan,
                arrivals=self.arrivals,
            )
        simulation = self._fleet.simulation()
        with uncollected(), self._trainer(simulation) as trainer:
            started, processor = time.monotonic(), processor_seconds()
            self._run(simulation, started, trainer)
            costs = [] if trainer is None else trainer.collect()
        ended, server = time.monotonic(), simulation.server
        self.result = DirectResult(
            len(server.devices),
            tuple(server.rounds),
            simulation.updates,
            started - begun,
            ended - started,
            processor_seconds() - processor + sum(one.processor for one in costs),
            simulation.clock.now,
            server.bytes_up,
            server.bytes_down,
            server.digest,
            dict(server.refused),
            max(0, resident_bytes() - before) + sum(one.memory for one in costs),
        )
        if self.evaluated:
            self.errors = self._fleet.errors(simulation, self.evaluated)
        return self.result.cost

    def repeat(self, count: int) -> Iterator[DirectResult]:
        """Run so many times with the same seeds, and yield every result."""
        for _ in range(count):
            self.run()
            assert self.result is not None
            yield self.result

    def _trainer(
        self, simulation: DirectSimulation
    ) -> AbstractContextManager[WorkerTrainer | None]:
        if self.workers == 0 or self.attack_plan is not None:
            return nullcontext()
        return WorkerTrainer(simulation.devices, self.workers)

    def _run(
        self, simulation: DirectSimulation, started: float, trainer: WorkerTrainer | None
    ) -> None:
        shown, rounds = started, self.scenario.run.rounds

        def closed() -> None:
            nonlocal shown
            now, last = time.monotonic(), simulation.server.rounds[-1]
            self.moved, self.refused = last.version, dict(simulation.server.refused)
            is_done = simulation.server.is_done
            if is_done or now - shown >= SHOW_EVERY:
                shown = now
                state = "done" if is_done else "training"
                self.shown.update(self.name, state, self._progress(simulation, now - started))
            if now - started > self.limit and not is_done:
                raise TooSlow(
                    f"time limit of {self.limit:.0f} s: {last.version} of {rounds} rounds closed",
                    hint="more time: --limit; fewer rounds: --rounds",
                )

        simulation.run(closed, trainer)

    def _progress(self, simulation: DirectSimulation, seconds: float) -> Progress:
        server, last = simulation.server, simulation.server.rounds[-1]
        count = len(server.devices)
        return Progress(
            round=last.round,
            version=last.version,
            rounds=self.scenario.run.rounds,
            loss=last.loss,
            seen=count,
            present=count,
            up=server.bytes_up,
            down=server.bytes_down,
            refused=dict(server.refused),
            seconds=seconds,
        )
