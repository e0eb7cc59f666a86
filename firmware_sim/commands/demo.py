"""Train eight homes in three ways, and show the fleet's gain for a home with ten days of history.

Starts a broker, an aggregator and eight devices, each a process of its own, and stops all of them.
Needs no network and no torch. Two weeks after the training part choose the way with a fleet; the
weeks after them are judged. Local training is the same program, data and optimiser, nothing shared.

  gridfed-sim demo
  gridfed-sim demo --scenario ev --out ev-run
"""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from edge_sdk.app.cli import CommandResult
from edge_sdk.errors import Failure
from firmware_sim.commands.options import add_broker_kind
from firmware_sim.evaluation.records import DAY
from firmware_sim.fleet.federation import (
    FINISH_TIMEOUT,
    Federation,
    Progress,
    TooSlow,
    free_port,
    start_broker,
)
from firmware_sim.fleet.histories import check_histories, manifest_of
from firmware_sim.fleet.processes import ProcessGroup, RunningProgram, stoppable
from firmware_sim.fleet.run_files import Prepared, prepare
from firmware_sim.reports import html_page
from firmware_sim.reports.demo_outcome import (
    RUNS,
    Outcome,
    OwnForecasts,
    each_in_turn,
    newcomer,
    next_days,
)
from firmware_sim.reports.evaluation import all_rolling, evaluate, traffic_of
from firmware_sim.reports.progress_display import Display, display
from firmware_sim.results import (
    FEDERATED,
    LOCAL,
    NAMES,
    PLFL,
    Traffic,
    chosen_arm,
    mean_mase,
    short,
)
from firmware_sim.samples import SampleSet, sample_set
from firmware_sim.scenario import Scenario, scenario, unix_seconds

LEARNED = "round trained"  # what a device logs after each round


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    parser.add_argument(
        "--out", type=Path, default=Path("demo-run"), help="output folder (demo-run)"
    )
    parser.add_argument("--scenario", default="demo", help="a shipped name, or a TOML file (demo)")
    parser.add_argument(
        "--limit", type=float, default=300.0, help="time limit of one run, in seconds (300)"
    )
    add_broker_kind(parser, "--broker")


def run(args: Namespace) -> CommandResult:
    """Run the demo; return its outcome and the files written."""
    clear(args.out)
    with stoppable(), display(is_quiet=args.json) as shown:
        demo = Demo(scenario(args.scenario), args.out, shown, args.limit, args.broker)
        outcome = demo.run()
    made = publish(outcome, args.out)
    files = "\n".join(f"{what}: {path}" for what, path in made.items())
    data = outcome.as_json() | {"files": {what: str(path) for what, path in made.items()}}
    return CommandResult(data, f"\n{outcome.text()}\n\n{files}")


@dataclass
class Demo:
    """One demonstration in one folder."""

    scenario: Scenario
    out: Path  # output folder; it must not hold an earlier demo
    shown: Display
    limit: float = 300.0  # time limit of one run in seconds
    broker: str = "auto"  # kind of broker to start: ``auto``, ``mosquitto`` or ``embedded``
    seconds: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)
    traffic: dict[str, dict[str, Traffic]] = field(default_factory=dict)
    peak_kb: int = 0

    def run(self) -> Outcome:
        """Run everything: broker, three runs, evaluation, page.

        Raises:
            Died: A program ended in failure.
            TooSlow: A run did not end in time.
        """
        begun = time.monotonic()
        samples = sample_set(self.scenario.samples)
        for sample in samples.samples:
            sample.verify()
        check_histories(self.scenario, samples)
        with ProcessGroup(self.out / "logs") as family:
            url = start_broker(family, self.out / "broker", self.broker)
            self.shown.note(f"broker at {url}; logs in {self.out / 'logs'}")
            fleets = {arm: self._learn(family, url, samples, arm) for arm in RUNS}
        self.shown.note("evaluating forecasts on readings that no device was trained on")
        evaluation_begun = time.monotonic()
        outcome = self._evaluated(fleets, samples)
        self.seconds |= {
            "evaluation": time.monotonic() - evaluation_begun,
            "all": time.monotonic() - begun,
        }
        return outcome

    def _evaluated(self, fleets: Mapping[str, Prepared], samples: SampleSet) -> Outcome:
        judged, chosen = self.scenario.span, self.scenario.validation_span
        rolled = all_rolling(fleets, (chosen or judged)[:1] + judged[1:])
        rows, panels = evaluate(fleets, samples, judged, self.traffic, rolled)
        found = Outcome(
            self.scenario, samples, rows, panels, self.seconds, self.rounds, self.cpu, self.peak_kb
        )
        if chosen is None:
            return found
        early, early_panels = evaluate(fleets, samples, chosen, self.traffic, rolled)
        arm = chosen_arm(early)
        validation = {one: mean_mase(early, one) for one in (LOCAL, FEDERATED, PLFL)}
        home, in_turn, tomorrow = None, None, None
        if self.scenario.newcomer_days:
            devices = next(iter(fleets.values())).devices
            records = {one.id: one.sample.column(samples.target) for one in devices}
            step = manifest_of(self.scenario.bundle).window.step_seconds
            until = unix_seconds(self.scenario.until)
            begun = unix_seconds(self.scenario.newcomer_start)
            own = OwnForecasts.of(
                *records[devices[-1].id], step, known=(begun, until), end=judged[1]
            )
            days = self.scenario.newcomer_days
            home = newcomer(arm, days, validation=early_panels[-1], judged=panels[-1], own=own)
            first = unix_seconds(self.scenario.start)
            in_turn = each_in_turn(records, step, days, start=first, until=until, judged=judged)
            weeks = round((judged[1] - judged[0]) / DAY)
            tomorrow = next_days(records, step, (first, judged[1]), weeks)
        return replace(
            found,
            arm=arm,
            validation=validation,
            newcomer=home,
            in_turn=in_turn,
            tomorrow=tomorrow,
        )

    def _learn(self, family: ProcessGroup, url: str, samples: SampleSet, arm: str) -> Prepared:
        begun = time.monotonic()
        learning = replace(self.scenario.run, shared=shared(self.scenario, arm))
        chosen = replace(self.scenario, run=learning)
        address = f"127.0.0.1:{free_port()}"
        prepared = prepare(
            self.out / arm, arm, chosen, samples, broker=url, page=address, choose_best=False
        )
        run = Federation(prepared, learning.rounds, family)
        try:
            run.start_aggregator()
            run.start_devices()
            self._wait(run, arm)
        finally:
            run.stop()
        self._account(run, arm, time.monotonic() - begun)
        return prepared

    def _wait(self, run: Federation, arm: str) -> None:
        """Show progress until the run is complete and every device has the final model."""
        name = NAMES[arm].split(" (")[0]
        if arm == LOCAL:
            self._wait_alone(run, name)
            return
        for now in run.watch(self.limit):
            self.shown.update(name, "training" if not now.is_done else "done", now)
        until = time.monotonic() + FINISH_TIMEOUT
        for device in run.devices:
            if device.wait(max(0.0, until - time.monotonic())) is None:
                raise TooSlow(f"{device.name} did not finish", hint=device.tail())

    def _wait_alone(self, run: Federation, name: str) -> None:
        """Show progress from the devices' logs: without shared layers nothing is sent."""
        begun, wanted = time.monotonic(), self.scenario.run.rounds
        while True:
            run.family.require_running()
            learned = min(map(learned_rounds, run.devices))
            seconds = time.monotonic() - begun
            now = Progress(
                version=min(learned, wanted),
                rounds=wanted,
                seen=len(run.devices),
                present=sum(one.poll() is None for one in run.devices),
                seconds=seconds,
            )
            self.shown.update(name, "done" if now.is_done else "training", now)
            if now.is_done:
                return
            if seconds > self.limit:
                raise TooSlow(f"{learned} of {wanted} local rounds after {seconds:.0f} s")
            time.sleep(0.4)

    def _account(self, run: Federation, arm: str, seconds: float) -> None:
        self.seconds[arm] = seconds
        alone = min(map(learned_rounds, run.devices))
        self.rounds[arm] = alone if arm == LOCAL else run.rounds
        self.cpu[arm] = sum(one.cpu for one in run.devices)
        self.peak_kb = max(self.peak_kb, *(one.peak_kb for one in run.devices))
        self.traffic[arm] = traffic_of(run.prepared.devices, run.devices)


def shared(chosen: Scenario, arm: str) -> tuple[str, ...] | None:
    """Return the shared layers of a run, by name prefix.

    All when federated, none when local, else those of the scenario or bundle.
    """
    return {FEDERATED: ("",), LOCAL: ()}.get(arm, chosen.run.shared)


def learned_rounds(device: RunningProgram) -> int:
    return device.log.read_text(encoding="utf-8", errors="replace").count(LEARNED)


def publish(outcome: Outcome, out: Path) -> dict[str, Path]:
    """Write page, picture and numbers; return their paths."""
    scenario, samples = outcome.scenario, outcome.samples
    learning = scenario.run
    facts = (
        ("Readings", f"{samples.title}; {samples.kind}"),
        ("Licence and source", f"{samples.licence}. {samples.attribution}"),
        ("Training part", f"{scenario.start} to {scenario.until}"),
        ("Evaluated on", f"{scenario.evaluation[0]} to {scenario.evaluation[1]}, one step ahead"),
        ("Model", f"bundle {scenario.bundle}, {learning.method}, {dict(learning.settings)}"),
        ("Rounds of training", ", ".join(f"{NAMES[a]}: {n}" for a, n in outcome.rounds.items())),
        ("How settings were chosen", scenario.tuning_notes or "not stated"),
        ("Seconds", ", ".join(f"{name} {value:.0f}" for name, value in outcome.seconds.items())),
        ("Largest device process", short(outcome.peak_kb * 1024)),
    )
    home = outcome.newcomer
    png = html_page.picture(outcome.panels, samples.unit)
    week = None if home is None else html_page.week_picture(home.week, samples.unit, outcome.arm)
    table_text = "" if home is None else home.table(samples.unit)
    page_text = html_page.PageText(
        scenario.title, outcome.answer, samples.unit, facts, table_text, week
    )
    made = {"page": out / "index.html", "numbers": out / "results.json"}
    made["page"].write_text(html_page.page(page_text, outcome.rows, png), encoding="utf-8")
    numbers = json.dumps(outcome.as_json(), indent=1) + "\n"
    made["numbers"].write_text(numbers, encoding="utf-8")
    if png is not None:
        made["picture"] = out / "forecasts.png"
        made["picture"].write_bytes(png)
    if week is not None:
        made["new home"] = out / "new-home.png"
        made["new home"].write_bytes(week)
    return made


class OutputFolderError(Failure):
    """The output folder holds something that the demo must not overwrite."""

    exit_code = 2


def clear(out: Path) -> None:
    """Empty the folder of an earlier demo; raise OutputFolderError if it holds something else."""
    import shutil  # noqa: PLC0415 - only to replace an earlier demo

    mark = out / ".gridfed-sim"
    if out.exists() and any(out.iterdir()):
        if not mark.exists():
            raise OutputFolderError(f"{out} is not empty", hint="name another folder with --out")
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    mark.touch()
