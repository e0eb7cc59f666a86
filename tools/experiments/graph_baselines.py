"""Results in PFGL's paper, and scores of strong methods by others on the same windows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.experiments import ev

Marks = Mapping[tuple[str, int], Mapping[str, tuple[str, float]]]
"""Set and horizon to the kind of mark, to the best method of that kind and its QS."""

PLAIN = ("persistence", "snaive_", "tod_", "level_bins", "ridge_local", "conv_local")
"""Prefixes of the names of the simple methods; none of them reads a week."""

TABLES: Mapping[str, tuple[float, float, float, float, float, float]] = {  # [PFGL] II to IV
    "No_FL": (0.9107, 1.5228, 2.8489, 4.7110, 0.7929, 0.7585),  # QS 1, 6; MIL 1, 6; ICP 1, 6
    "LSTM-FedAvg": (0.9171, 1.4846, 2.9467, 4.5517, 0.7942, 0.6726),
    "LSTM-CNN-FedAvg": (0.8823, 1.4267, 2.6978, 4.2358, 0.7696, 0.7455),
    "LSTM-PFL": (0.8895, 1.4588, 2.8190, 4.4356, 0.7909, 0.6910),
    "LSTM-CNN-PFL": (0.8817, 1.4252, 2.6600, 4.1525, 0.7790, 0.7554),
    "CNFGNN": (0.8648, 1.3525, 2.7170, 4.0656, 0.7755, 0.7390),
    "PFGL": (0.8587, 1.3285, 2.6999, 3.9666, 0.8006, 0.7652),
}

TABLE_V: Mapping[tuple[str, int], Mapping[str, float]] = {  # [PFGL] QS at p = 6 by attack, liars
    ("", 0): {
        "LSTM-FedAvg": 1.4846,
        "LSTM-CNN-FedAvg": 1.4267,
        "LSTM-PFL": 1.4588,
        "LSTM-CNN-PFL": 1.4252,
        "CNFGNN": 1.3525,
        "PFGL": 1.3285,
    },
    ("flipping", 1): {
        "LSTM-FedAvg": 2.3646,
        "LSTM-CNN-FedAvg": 1.4262,
        "LSTM-PFL": 1.4351,
        "LSTM-CNN-PFL": 1.4262,
        "CNFGNN": 1.351,
        "PFGL": 1.331,
    },
    ("flipping", 4): {
        "LSTM-FedAvg": 4.2189,
        "LSTM-CNN-FedAvg": 1.4262,
        "LSTM-PFL": 1.4775,
        "LSTM-CNN-PFL": 1.4262,
        "CNFGNN": 1.3562,
        "PFGL": 1.3251,
    },
    ("flipping", 8): {
        "LSTM-FedAvg": 4.4764,
        "LSTM-CNN-FedAvg": 1.4262,
        "LSTM-PFL": 1.4382,
        "LSTM-CNN-PFL": 1.4262,
        "CNFGNN": 1.3562,
        "PFGL": 1.3281,
    },
    ("scaling", 1): {
        "LSTM-FedAvg": 1.4867,
        "LSTM-CNN-FedAvg": 1.4275,
        "LSTM-PFL": 1.437,
        "LSTM-CNN-PFL": 1.451,
        "CNFGNN": 1.3562,
        "PFGL": 1.3405,
    },
    ("scaling", 4): {
        "LSTM-FedAvg": 1.5302,
        "LSTM-CNN-FedAvg": 1.4275,
        "LSTM-PFL": 1.4268,
        "LSTM-CNN-PFL": 1.451,
        "CNFGNN": 1.3561,
        "PFGL": 1.3378,
    },
    ("scaling", 8): {
        "LSTM-FedAvg": 1.5519,
        "LSTM-CNN-FedAvg": 1.4275,
        "LSTM-PFL": 1.4226,
        "LSTM-CNN-PFL": 1.451,
        "CNFGNN": 1.3378,
        "PFGL": 1.3316,
    },
    ("gaussian", 1): {
        "LSTM-FedAvg": 1.4907,
        "LSTM-CNN-FedAvg": 1.4225,
        "LSTM-PFL": 1.4383,
        "LSTM-CNN-PFL": 1.4225,
        "CNFGNN": 1.3668,
        "PFGL": 1.3405,
    },
    ("gaussian", 4): {
        "LSTM-FedAvg": 1.5302,
        "LSTM-CNN-FedAvg": 1.424,
        "LSTM-PFL": 1.446,
        "LSTM-CNN-PFL": 1.424,
        "CNFGNN": 2.4749,
        "PFGL": 1.3415,
    },
    ("gaussian", 8): {
        "LSTM-FedAvg": 1.5519,
        "LSTM-CNN-FedAvg": 1.4263,
        "LSTM-PFL": 1.4352,
        "LSTM-CNN-PFL": 1.4263,
        "CNFGNN": 1.3601,
        "PFGL": 1.3292,
    },
}


def marks(anchors: Path | None) -> Marks:
    """Read the best methods of others: those that must be beaten, on one window, and of all.

    Those that were trained on the choosing part as well are no competitors.
    """
    out: dict[tuple[str, int], dict[str, tuple[str, float]]] = {}
    for dataset in ev.SETS if anchors is not None else ():
        for horizon in (1, 6):
            path = anchors / "results" / f"{dataset}_p{horizon}.json" if anchors else Path()
            if path.exists():
                out[dataset, horizon] = _best(json.loads(path.read_text()))
    return out


def _best(table: Mapping[str, Any]) -> dict[str, tuple[str, float]]:
    """Find the best of each kind.

    >>> rows = {"ridge_local": 2.0, "lgbm_pooled": 1.5, "lgbm_local_week": 1.0, "x_refit": 0.5}
    >>> _best({name: {"0": {"mean": {"QS": qs}}} for name, qs in rows.items()})["stretch"]
    ('lgbm_local_week', 1.0)
    """
    means = {
        name: sum(x["mean"]["QS"] for x in seeds.values()) / len(seeds)
        for name, seeds in table.items()
        if not name.endswith("_refit")
    }
    same = {x: qs for x, qs in means.items() if "_week" not in x or x == "snaive_week"}
    plain = {x: qs for x, qs in same.items() if x.startswith(PLAIN)}
    kinds = {"must beat": plain, "same window": same, "stretch": means}
    return {kind: min(rows.items(), key=lambda row: row[1]) for kind, rows in kinds.items() if rows}
