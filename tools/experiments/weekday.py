"""E9 with the day of the week, one-hot, as seven further inputs of the same net: what they change.

    python -m tools.experiments.weekday --data FOLDER [--cells 10] [--seeds 3]

Milan, an hour ahead, 240 gradient steps as in E9's tables; needs torch, which makes the net. A holiday
is no input: of Milan's thirty days only the first is one, and no window begins in the first three.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from aggregator.extensions.authoring.catalogue import MODELS
from aggregator.extensions.authoring.export import export
from aggregator.extensions.authoring.models import WIDTH, views
from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.protocol.contract.manifest import Feature
from edge_sdk.protocol.keys import from_seed
from tools.experiments import bafdp, cells
from tools.experiments.cellular_setup import Arm, Ground, ground, judged, together
from tools.experiments.pages import table

ROWS = ("FedAvg", "BAFDP")
DAYS = 7
KEY = from_seed(bytes(32))


class WeekdayMlp(nn.Module):
    """BAFDP's net with the target's day of the week beside closeness and period.

    >>> sum(p.numel() for p in WeekdayMlp().parameters())
    5121
    """

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(6 + DAYS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()
        )
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        close, period = views(x, 1)
        day = x[:, -1, 3:4] * 6.0
        hot = [torch.relu(1.0 - torch.relu(day - k) - torch.relu(k - day)) for k in range(DAYS)]
        out: Tensor = self.head(
            self.body(torch.cat([close.flatten(1), period.flatten(1), *hot], 1))
        )
        return out


def with_weekday(folder: Path) -> Bundle:
    """Export ``cells-mlp-1`` with the day of the week of the target."""
    _, recipe = MODELS["cells-mlp-1"]
    day = Feature("day-of-week", "calendar", "1", 0.0, 6.0, what="day_of_week", lead_steps=1)
    *lags, traffic = recipe.features
    torch.manual_seed(0)
    told = replace(recipe, features=(*lags, day, traffic))
    export(WeekdayMlp(), told, name="cells-weekday-1", version=1, signer=KEY, out=folder)
    return Bundle.open(folder, trust=TrustedKeys((KEY.public,)))


def errors(arm: Arm, data: Path, bundle: Bundle | None) -> tuple[float, float]:
    """Return RMSE and MAE of an arm, with another bundle where one is given."""
    base = ground(arm, data)
    if bundle is not None:
        cuts = {name: cells.frame(x, bundle.manifest) for name, x in base.cells.items()}
        base = Ground(bundle, base.cells, cuts, cuts, base.part)
    found = together(judged(base, bafdp.trained(arm, base)[0]))
    return found["RMSE"], found["MAE"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cells", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        inputs = {"traffic alone": None, "with the day of the week": with_weekday(Path(folder))}
        for name in ROWS:
            for title, bundle in inputs.items():
                found = []
                for seed in range(options.seeds):
                    arm = Arm(
                        "e9", cells.MILAN, 1, name, "mlp", None, 240, seed, clients=options.cells
                    )
                    found.append(errors(arm, options.data, bundle))
                middle, spread = np.mean(found, axis=0), np.std(found, axis=0)
                rows.append(
                    [
                        name,
                        title,
                        *(f"{m:.2f} ± {s:.2f}" for m, s in zip(middle, spread, strict=True)),
                    ]
                )
    print("\n".join(table(("method", "inputs", "RMSE", "MAE"), rows)))


if __name__ == "__main__":
    main()
