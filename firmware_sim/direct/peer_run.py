"""Run a scenario among peers directly, with progress and time limit."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from firmware_sim.attacks.attack_plan import AttackPlan
from firmware_sim.direct.fleet import DirectFleet
from firmware_sim.direct.run import SHOW_EVERY
from firmware_sim.fleet.federation import Progress, TooSlow
from firmware_sim.fleet.in_process import Cost, processor_seconds
from firmware_sim.peers.settings import PeerPlan
from firmware_sim.reports.credit_report import CreditReport
from firmware_sim.reports.forecast_errors import Errors
from firmware_sim.reports.progress_display import Display
from firmware_sim.samples import SampleSet
from firmware_sim.scenario import Scenario


@dataclass
class DirectPeerRun:
    """One direct run among peers, with the attributes of a ``FleetRun`` that a trial reads."""

    scenario: Scenario
    samples: SampleSet
    shown: Display
    limit: float = 600.0  # time limit in seconds
    seed: int = 0  # seed of a random graph
    name: str = "peers"
    attack_plan: AttackPlan | None = None  # attack on the run; None without one
    evaluated: tuple[str, ...] = ()  # ids of the devices whose forecasts are evaluated at the end
    errors: Errors | None = None
    credit: CreditReport | None = None  # None: there is no server to weigh models
    refused: dict[str, int] = field(default_factory=dict)  # nothing is refused: there is no link
    moved: int = 0  # number of exchanges
    # disagreement of the honest devices' models after each exchange
    disagreements: list[float] = field(default_factory=list)

    def run(self) -> Cost:
        """Run once; ``errors`` and ``disagreements`` are set afterwards.

        Raises:
            SettingsError: A setting or a graph that does not fit.
            TooSlow: It did not end within the time limit.
        """
        PeerPlan.of(self.scenario.run)  # names what does not fit before an aggregator's words do
        fleet = DirectFleet.of(
            self.scenario, self.samples, seed=self.seed, attack_plan=self.attack_plan
        )
        simulation = fleet.peer_simulation()
        begun = shown = time.monotonic()
        processor, count = processor_seconds(), len(simulation.devices)
        now = Progress(rounds=self.scenario.run.rounds, seen=count, present=count)

        def exchanged() -> None:
            nonlocal shown
            self.moved, spent = simulation.exchanges, time.monotonic() - begun
            self.disagreements.append(simulation.disagreement)
            is_done = self.moved == now.rounds
            if is_done or begun + spent - shown >= SHOW_EVERY:
                shown, up = begun + spent, simulation.bytes_up
                state = replace(
                    now, round=self.moved, version=self.moved, up=up, down=up, seconds=spent
                )
                self.shown.update(self.name, "done" if is_done else "training", state)
            if spent > self.limit and not is_done:
                raise TooSlow(
                    f"time limit of {self.limit:.0f} s: {self.moved} of {now.rounds} exchanges",
                    hint="more time: --limit; fewer exchanges: --rounds",
                )

        simulation.run(exchanged)
        self.errors = fleet.errors(simulation, self.evaluated)
        return Cost(
            count,
            self.moved,
            time.monotonic() - begun,
            processor_seconds() - processor,
            0.0,
            simulation.bytes_up,
            simulation.bytes_up,
        )
