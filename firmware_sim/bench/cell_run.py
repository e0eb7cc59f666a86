"""Run one cell of a sweep directly, and return its record."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from firmware_sim.bench.cells import SweepCell, evaluated, scenario_of
from firmware_sim.bench.run_record import FORMAT, machine, versions
from firmware_sim.direct.run import DirectRun
from firmware_sim.reports.progress_display import Display
from firmware_sim.samples import SampleSet
from firmware_sim.scenario import Scenario


@dataclass(frozen=True, slots=True)
class SweepDefinition:
    """Settings and readings that the runs of a sweep have in common."""

    scenario: Scenario  # scenario with its runs and attacks
    samples: SampleSet
    seeds: tuple[int, ...]
    mark: str  # digest of the sweep's definition
    limit: float  # time limit of one run in seconds


def record_of(sweep: SweepDefinition, cell: SweepCell, shown: Display) -> dict[str, Any]:
    """Run a cell in this process, and return its record as JSON values.

    Raises:
        TooSlow: The run did not end within its time limit.
    """
    samples = sweep.samples.with_seed(cell.seed)
    seeded = sweep.scenario.with_seed(cell.seed)
    name, began = f"{cell.run.method} {cell.run.rule_name}, {cell.attack}", time.time()
    run = DirectRun(
        scenario_of(seeded, cell),
        samples,
        shown,
        limit=sweep.limit,
        seed=cell.seed,
        name=f"{name}, seed {cell.seed}",
        attack_plan=cell.attack_plan,
        evaluated=evaluated(seeded, samples),
    )
    run.run()
    assert run.result is not None
    assert run.errors is not None
    result = run.result
    return {
        "format": FORMAT,
        "name": cell.name,
        "definition": sweep.mark,
        "began": began,
        "cell": {
            "method": cell.run.method,
            "rule": cell.run.rule_name,
            "encoding": cell.run.encoding,
            "attack": cell.attack,
            "seed": cell.seed,
            "settings": dict(cell.run.settings),
            "attack_settings": cell.plan,
        },
        "versions": versions(),
        "machine": machine(),
        "result": {
            "rounds": result.version,
            "updates": result.updates,
            "bytes_up": result.up,
            "bytes_down": result.down,
            "seconds": result.seconds,
            "processor_seconds": result.processor,
            "setup_seconds": result.setup,
            "virtual_seconds": result.virtual,
            "refused": result.refused,
            "state": result.digest,
            "model": result.model,
        },
        "rounds": [asdict(replace(one, cohort=())) for one in result.rounds],
        "errors": {
            device: {
                "mae": _number(error.mae),
                "rmse": _number(error.rmse),
                "windows": error.windows,
            }
            for device, error in run.errors.each.items()
        },
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
