"""Forecasts of cells by the federated net of the bundles ``cells-week-1`` and ``cells-week-24``.

Three stages of eight rounds at falling rates, then 50 steps of tuning on each cell: with 350 windows
a cell, more rounds make the forecasts of the next week worse. Rounds, rates and steps were chosen
on the week before the test part; what is judged is learnt with that week.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edge_sdk.forecasting.windows import Scale
from edge_sdk.protocol.contract.parameter_layout import Vector
from tools.experiments import cells, chargers, charging
from tools.experiments.ev import Part
from tools.experiments.joint_loop import key, redrawn

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Judged = Literal["choose", "test"]

STAGES = ((8, 2e-3), (8, 5e-4), (8, 1e-4))
"""Rounds and rates."""

TUNING = 50
"""Steps of each cell on its own windows, at the rate of the charging sites' tuning."""


@dataclass(frozen=True, slots=True, eq=False)
class NetForecasts:
    """A cell's forecasts."""

    origins: Ints  # rows that they are made at, rising
    forecast: Floats  # in the set's unit, shape ``(n, horizon)``

    def at(self, origins: Ints) -> Floats:
        """Return the forecasts made at some rows; not a number where there is none.

        >>> made = NetForecasts(np.array([3, 5]), np.array([[1.0], [2.0]]))
        >>> made.at(np.array([3, 4, 5])).ravel().tolist()
        [1.0, nan, 2.0]
        """
        places = np.minimum(np.searchsorted(self.origins, origins), len(self.origins) - 1)
        is_there = self.origins[places] == origins
        return np.where(is_there[:, None], self.forecast[places], np.nan)


class CellGround(charging.Ground):
    """Cells and the bundle; learnt are the rows before the judged part."""

    judged: Judged = "test"

    def origins(self, name: str, part: Part, every: int = 1) -> Ints:
        """List a cell's origins of a part."""
        split: cells.Split = part
        if part == "learn" and self.judged == "test":
            split = "train"
        cell: Any = self.stations[name]
        return cells.origins(cell, self.frames[name], split)[::every]


class ChoosingGround(CellGround):
    """The same for judging the week before the test part."""

    judged = "choose"


def tuned(data: Path, name: str, judged: Judged, seed: int) -> Mapping[str, NetForecasts]:
    """Train the fleet's net, tune it on each cell, and return the forecasts of the judged part.

    Args:
        data: Folder of the sets.
        name: Task of the anchors.
        judged: The part; nothing of it or after it is learnt.
        seed: Of the initial vector and the minibatches.
    """
    dataset, _, horizon = name.partition(":")
    base = _ground(data, dataset, int(horizon), judged)
    arm = charging.Arm("e1", dataset, int(horizon), "week, federated", seed, 1, 1)
    course = chargers.alone(
        replace(arm, seed=seed + 1000),
        base,
        base.windows(),
        TUNING,
        rate=chargers.GENTLE,
        batch=chargers.WIDE,
        every=TUNING,
        starts=_fleet(arm, base),
    )
    *_, vectors = course
    told = charging.told(base, charging.Learnt(vectors), judged)
    return {
        cell: NetForecasts(base.origins(cell, judged), fan[..., 1]) for cell, fan in told.items()
    }


def payload_bytes(name: str) -> int:
    """Return the bytes that a cell sends, and receives, for its whole training in float32."""
    bundle = charging.opened(f"cells-week-{name.partition(':')[2]}")
    return 4 * len(bundle.initial) * sum(rounds for rounds, _ in STAGES)


def _ground(data: Path, dataset: str, horizon: int, judged: Judged) -> CellGround:
    bundle = charging.opened(f"cells-week-{horizon}")
    found: dict[str, Any] = {cell.name: cell for cell in cells.load(data, dataset)}
    learnt: cells.Split = "train" if judged == "test" else "learn"
    frames = {}
    for name, cell in found.items():
        scale = Scale.of(cell.traffic[: cell.rows(learnt)[1]])
        frames[name] = cells.frame(cell, bundle.manifest, scale=scale)
    kind = CellGround if judged == "test" else ChoosingGround
    return kind(bundle, found, frames, None)


def _fleet(arm: charging.Arm, base: CellGround) -> dict[str, Vector]:
    """Return every cell's vector after the last round."""
    spec = base.bundle.manifest.spec(("",))
    common = redrawn(spec, base.bundle.initial, key(arm.seed, "_agg", "initial", 0))
    states: dict[str, Any] = {}
    vectors: dict[str, Vector] = {}
    for number, (limit, rate) in enumerate(STAGES):
        settings = {**chargers.TOGETHER, "rate": rate}
        turn = replace(arm, seed=arm.seed + number)
        stage = chargers.stage_of(
            turn, base, settings, limit, common, batch=chargers.WIDE, states=states
        )
        *_, last = stage.steps(spec.shared(common))
        vectors = {name: np.array(last.state.mixed[name]) for name in base.frames}
        states = {name: replace(state, answered=0) for name, state in stage.states.items()}
        common = np.asarray(stage.server.model(last.state)["p"], np.float32)
    return vectors
