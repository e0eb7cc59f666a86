"""Make the papers' figures of curves: forecasts beside readings, and a long run's course.

    python tools/reproduce.py figures --data data --out runs

PL-FL's Figure 4 and its learning curves are made of the kept results of E5 and E6 (the longest runs
in ``--out``), and PFGL's Figure 3 of E1's; the learning curve of PFGL's longest run is made of its
saved middles (``tools/experiments/long_run.py``). All others are trained first, PFGL's Figure 2 in
some minutes and each line of the others in some seconds; what ``--out`` has is not trained again.
Records go to ``tools/papers/curves`` and ``weights``, pictures are made of them by
``reproduce.py list --docs docs``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tools.experiments import (
    artificial_graph_curves,
    buildings,
    cell_curves,
    chargers,
    charging,
    ev,
    falling_rates,
    long_run,
    plfl,
    station_scores,
)
from tools.experiments.resumable import Checkpoint
from tools.papers import curves, drawings, stations
from tools.papers.curves import rounded

EXPERIMENT = "figures"
LAST, DAYS = 150, 2
HOMES = "building_resstock_ca_alameda"
CONFIGURATIONS = ("FL", "cfg 1", "cfg 2", "cfg 3")

FOLDERS = {"rows": drawings.FOLDER, "stations": stations.FOLDER}
"""Folders of records that are no curves, by a key of theirs."""

Record = Mapping[str, Any]


def main(options: argparse.Namespace) -> int:
    """Write every record that can be made; name those that cannot."""
    makers: Mapping[str, Callable[[argparse.Namespace], Record | None]] = {
        "pl-fl-fig-4": last_forecasts,
        "pl-fl-servers": server_lengths,
        "pl-fl-layers": layer_lengths,
        "bafdp-fig-2": cell_curves.forecasts,
        "bafdp-fig-3": cell_curves.budgets,
        "bafdp-fig-4-to-6": cell_curves.waiting,
        "bafdp-fig-8": cell_curves.attackers,
        "graph-aware-fig-10-1": artificial_graph_curves.five,
        "graph-aware-fig-10-3": artificial_graph_curves.fifty,
        "graph-aware-fig-10-4": artificial_graph_curves.text,
        "pfgl-fig-2": station_fans,
        "pfgl-fig-3": station_weights,
        "pfgl-lengths": long_run.lengths,
        "pfgl-rates": falling_rates.falling,
        stations.NAME: station_scores.station_scores,
    }
    missing = []
    for name, make in makers.items():
        if options.only and name not in options.only:
            continue
        record = make(options)
        if record is None:
            missing.append(name)
            continue
        folder = next((x for key, x in FOLDERS.items() if key in record), curves.FOLDER)
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")
        print(f"written: {folder.name}/{name}.json")
    for name in missing:
        print(f"reproduce: {name}: its set or its runs are missing", file=sys.stderr)
    return 2 if missing else 0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", default=[], help="figures: these records alone")


def last_forecasts(options: argparse.Namespace) -> Record | None:
    """Return the last forecasts of the second building, by every configuration (PL-FL, Fig. 4)."""
    found = _longest("e6", CONFIGURATIONS, options)
    if len(found) < len(CONFIGURATIONS) or not (options.data / HOMES).is_dir():
        return None
    house = buildings.load(options.data, HOMES, 2)[1]
    rows = found["FL"]["forecasts"][house.name]["target_index"][-LAST:]
    truth = house.columns[buildings.LOAD][rows]
    lines = {arm: rounded(r["forecasts"][house.name]["point"][-LAST:]) for arm, r in found.items()}
    panels = [
        {"title": arm, "lines": {"measured": rounded(truth), "forecast": values}}
        for arm, values in lines.items()
    ]
    return {"x": "hour", "y": "kWh", "across": list(range(1, LAST + 1)), "panels": panels}


def server_lengths(options: argparse.Namespace) -> Record | None:
    """Return the learning curves of PL-FL's server algorithms (E5)."""
    return _learning(_longest("e5", tuple(plfl.SERVERS), options), "3 homes of ResStock")


def layer_lengths(options: argparse.Namespace) -> Record | None:
    """Return the learning curves of PL-FL's configurations (E6)."""
    return _learning(_longest("e6", (plfl.NO_FL, *CONFIGURATIONS), options), "42 homes of ResStock")


def _longest(experiment: str, names: Iterable[str], options: argparse.Namespace) -> dict[str, Any]:
    """Return the longest kept run of each arm of the paper's form, seed 0, on ResStock."""
    found = {}
    for name in names:
        paths = options.out.glob(f"{experiment}-{HOMES}-paper-{name.replace(' ', '')}-k*-s0.json")
        if kept := [json.loads(path.read_text()) for path in paths]:
            found[name] = max(kept, key=lambda r: int(r["arm"]["rounds"]))
    return found


def _learning(found: Mapping[str, Any], where: str) -> Record | None:
    """Return both errors of every run over its rounds; None without a run that kept its course."""
    paths = {name: r["path"] for name, r in found.items() if r.get("path")}
    if not paths:
        return None
    across = sorted({point["round"] for path in paths.values() for point in path})
    panels = []
    for kind, title in (("MAE", "test part: MAE, kWh"), ("MASE", "test part: MASE")):
        lines = {}
        for name, path in paths.items():
            values = {point["round"]: float(f"{point[kind]:.4g}") for point in path}
            lines[name] = [values.get(number) for number in across]
        panels.append({"title": title, "lines": lines})
    return {"x": "rounds (the paper has 2000)", "y": where, "across": across, "panels": panels}


def station_fans(options: argparse.Namespace) -> Record | None:
    """Return PFGL's intervals six steps ahead at every station, over some days (PFGL, Fig. 2)."""
    if not (options.data / ev.BOULDER).is_dir():
        return None
    arm = charging.Arm("e1", ev.BOULDER, 6, "PFGL", 0, options.turns, options.pace)
    base = charging.ground(arm, options.data)
    options.out.mkdir(parents=True, exist_ok=True)
    kept = Checkpoint((options.out / arm.file).with_suffix(".figure"))
    learnt, _, _ = chargers.federated(arm, base, kept)
    fans = charging.told(base, learnt, "test")
    panels = []
    for name in base.frames:
        rows = base.origins(name, "test")
        start = len(rows) // 2
        some = slice(start, start + DAYS * ev.DAY)
        truth, fan = base.frames[name].truth(rows[some])[:, -1], ev.served(fans[name][some, -1])
        lines = {"measured": rounded(truth), "median": rounded(fan[:, 1])}
        ends = {"low": rounded(fan[:, 0]), "high": rounded(fan[:, 2])}
        panels.append({"title": name, "lines": lines, **ends})
    kept.drop()
    across = [(i + 1) / 2 for i in range(DAYS * ev.DAY)]
    return {"x": "hour", "y": "kWh a half-hour", "across": across, "panels": panels}


def station_weights(options: argparse.Namespace) -> Record | None:
    """Return the weights of all stations in each other's mixture, last round (PFGL, Fig. 3)."""
    arm = charging.Arm("e1", ev.BOULDER, 6, "PFGL", 0, options.turns, options.pace)
    path = options.out / arm.file
    if not path.is_file():
        return None
    last = json.loads(path.read_text())["credits"][-1]
    rows = [rounded([last[x].get(y, 0.0) for y in last]) for x in last]
    title = f"weight of a station's model (column) for another (row), round {arm.rounds}"
    return {"title": title, "names": list(last), "rows": rows}
