"""Train LightGBM on the readings of all devices in one place, as a mark to compare with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from firmware_sim.evaluation.windows import DeviceWindows, Floats

LIGHTGBM = "LightGBM"
MISSING = "no centralised mark: LightGBM is not installed (pip install 'gridfed[compare]')"
MOST_ROWS = 300_000  # training windows of all devices; of more, every n-th is taken
TREES = 400
SETTINGS: Mapping[str, Any] = {
    "objective": "l1",
    "learning_rate": 0.05,
    "num_leaves": 31,
    "min_data_in_leaf": 50,
    "feature_fraction": 0.8,
    "verbosity": -1,
    "deterministic": True,
    "force_row_wise": True,
}


def is_available() -> bool:
    """Return whether LightGBM is installed."""
    try:
        import lightgbm  # noqa: F401, PLC0415 - only this mark needs it
    except (ImportError, OSError):  # OSError: the system's OpenMP library is missing
        return False
    return True


def centralised(
    devices: Mapping[str, DeviceWindows], seed: int = 0, trees: int = TREES
) -> dict[str, Floats]:
    """Return every device's forecasts by one model of all devices' windows, shape ``(m,)`` each."""
    import lightgbm  # noqa: PLC0415 - an optional library

    rows = np.concatenate([w.learn_rows for w in devices.values()])
    goals = np.concatenate([w.learn_targets[:, 0] for w in devices.values()])
    thin = slice(None, None, 1 + (len(rows) - 1) // MOST_ROWS)
    data = lightgbm.Dataset(rows[thin], goals[thin])
    model = lightgbm.train({**SETTINGS, "seed": seed}, data, trees)
    return {
        name: w.repeated["last value"] + w.scale * np.asarray(model.predict(w.judged_rows))
        for name, w in devices.items()
    }
