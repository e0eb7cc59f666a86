"""Make the data samples that the simulator ships, from local copies of the public sets.

    python tools/samples.py --data FOLDER

FOLDER holds ``building_resstock_ca_alameda/``, ``ev_perth_kinross/`` and ``cellular_milan/`` in
the form that ``docs/data.md`` describes. The output is the same to the byte for the same input:
``firmware_sim/data/index.json`` carries the checksum of every file, and the README beside it is
written from the same table. Needs pandas and pyarrow (the ``dev`` extra).
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

DATA = Path(__file__).resolve().parents[1] / "firmware_sim" / "data"
HOMES, CELLS = 8, 8


@dataclass(frozen=True, slots=True)
class Recipe:
    """Source of one set, its licence, and the meaning of its columns."""

    name: str
    title: str
    kind: str  # "simulated" or "measured": said wherever a result is shown
    licence: str
    licence_url: str
    attribution: str
    source: str
    changes: str
    step_seconds: int
    target: str
    unit: str
    columns: dict[str, str]  # CSV column -> canonical stream


RECIPES = (
    Recipe(
        name="homes",
        title="Eight homes in Alameda County, California, hourly, 2018",
        kind="simulated",
        licence="CC BY 4.0",
        licence_url="https://creativecommons.org/licenses/by/4.0/",
        attribution=(
            "End-Use Load Profiles for the U.S. Building Stock, ResStock 2021 release 1 (AMY2018),"
            " National Renewable Energy Laboratory, doi:10.25984/1876417; taken from the CityLearn"
            " repository (intelligent-environments-lab/CityLearn, MIT licence)"
        ),
        source="https://github.com/intelligent-environments-lab/CityLearn",
        changes=(
            "The first eight of the 42 homes in the file. load_kwh is the sum of appliances, hot"
            " water, heating and cooling demand, without conversion by a coefficient of"
            " performance. Local standard time (UTC-8) became UTC; the instant is the start of the"
            " hour. Rounded to 3 decimals (load) and 1 (weather)."
        ),
        step_seconds=3600,
        target="load_kwh",
        unit="kWh",
        columns={
            "load_kwh": "elec.import.energy",
            "temperature_c": "weather.temperature",
            "wind_ms": "weather.wind_speed",
        },
    ),
    Recipe(
        name="chargers",
        title="Eight public EV charging sites, Perth and Kinross, half-hourly, one year",
        kind="measured",
        licence="Open Government Licence v3.0",
        licence_url="https://www.nationalarchives.gov.uk/doc/open-government-licence/version/3/",
        attribution=(
            "Contains public sector information of Perth and Kinross Council licensed under the"
            " Open Government Licence v3.0 (charging sessions on ChargePlace Scotland); taken from"
            " fbohu/Deep-Spatio-Temporal-Forecasting-of-Electrical-Vehicle-Charging-Demand"
        ),
        source="https://data.pkc.gov.uk",
        changes=(
            "Sessions became energy in half-hours, spread at constant power over the estimated"
            " charging time. 2018-09-01 to 2019-08-31. Instants are UTC starts of the half-hour."
            " Rounded to 3 decimals."
        ),
        step_seconds=1800,
        target="energy_kwh",
        unit="kWh",
        columns={"energy_kwh": "ev.demand.energy"},
    ),
    Recipe(
        name="cells",
        title="Eight cells of the Milan grid, Internet activity, hourly, November 2013",
        kind="measured",
        licence="Open Database License (ODbL) 1.0",
        licence_url="https://opendatacommons.org/licenses/odbl/1-0/",
        attribution=(
            "Telecom Italia Big Data Challenge, doi:10.7910/DVN/EGZHFV; G. Barlacchi et al.,"
            " A multi-source dataset of urban life in the city of Milan and the Province of"
            " Trentino, Scientific Data 2, 150055 (2015). This extract is a derivative database"
            " and is itself made available under the ODbL 1.0"
        ),
        source="https://doi.org/10.7910/DVN/EGZHFV",
        changes=(
            "The first eight of 25 cells; sums of six ten-minute values. Local time (UTC+1) became"
            " UTC starts of the hour. The unit is the publisher's activity count, without physical"
            " meaning. Rounded to 2 decimals."
        ),
        step_seconds=3600,
        target="activity",
        unit="activity",
        columns={"activity": "cell.internet.activity"},
    ),
)

Device = tuple[str, pd.DataFrame]


def homes(folder: Path) -> Iterator[Device]:
    """Yield ``(device, frame)`` for the first homes: UTC instants, load and weather."""
    root = folder / "building_resstock_ca_alameda"
    load = pd.read_parquet(root / "load_hourly.parquet")
    weather = pd.read_csv(root / "weather_hourly.csv.gz")
    for home in list(dict.fromkeys(load.building_id))[:HOMES]:
        rows = load[load.building_id == home]
        yield (
            f"home-{home}",
            pd.DataFrame(
                {
                    "time": (pd.to_datetime(rows.ts_local) + pd.Timedelta(hours=8)).to_numpy(),
                    "load_kwh": rows.load_kwh.astype(float).round(3).to_numpy(),
                    "temperature_c": weather.dry_bulb_c.round(1).to_numpy(),
                    "wind_ms": weather.wind_speed_ms.round(1).to_numpy(),
                }
            ),
        )


def chargers(folder: Path) -> Iterator[Device]:
    """Yield ``(device, frame)`` for the eight charging sites, one year of half-hours."""
    table = pd.read_parquet(folder / "ev_perth_kinross" / "demand_30min.parquet")
    year = table[(table.ts_utc >= "2018-09-01") & (table.ts_utc < "2019-09-01")]
    for site in [name for name in table.columns if not name.startswith("ts_")]:
        energy = year[site].astype(float).round(3).to_numpy()
        device = "site-" + site.lower().replace("_", "-")
        yield device, pd.DataFrame({"time": year.ts_utc.to_numpy(), "energy_kwh": energy})


def cells(folder: Path) -> Iterator[Device]:
    """Yield ``(device, frame)`` for the first Milan cells."""
    table = pd.read_parquet(folder / "cellular_milan" / "internet_hourly.parquet")
    utc = (table.ts_local - pd.Timedelta(hours=1)).to_numpy()
    for cell in [name for name in table.columns if name != "ts_local"][:CELLS]:
        activity = table[cell].astype(float).round(2).to_numpy()
        yield cell.replace("_", "-"), pd.DataFrame({"time": utc, "activity": activity})


MAKERS = {"homes": homes, "chargers": chargers, "cells": cells}


def pack(frame: pd.DataFrame) -> bytes:
    """Return a frame as gzip of CSV; no name or time inside: same input, same bytes."""
    frame = frame.assign(time=pd.to_datetime(frame.time).dt.strftime("%Y-%m-%dT%H:%MZ"))
    text = frame.to_csv(index=False, lineterminator="\n")
    return gzip.compress(text.encode(), compresslevel=9, mtime=0)


def entry(recipe: Recipe, folder: Path, out: Path) -> dict[str, Any]:
    """Write one set's files and return its row of the index."""
    files = []
    (out / recipe.name).mkdir(parents=True, exist_ok=True)
    for device, frame in MAKERS[recipe.name](folder):
        packed = pack(frame)
        path = f"{recipe.name}/{device}.csv.gz"
        (out / path).write_bytes(packed)
        digest = hashlib.sha256(packed).hexdigest()
        files.append({"device": device, "path": path, "rows": len(frame), "sha256": digest})
    names = [x for x in Recipe.__slots__ if x != "name"]
    return {"name": recipe.name} | {x: getattr(recipe, x) for x in names} | {"files": files}


def readme(index: list[dict[str, Any]], out: Path) -> str:
    """Return the README of the data folder, in Markdown."""
    lines = [
        "# Shipped data samples",
        "",
        "Written by `tools/samples.py` from local copies of public data sets; do not edit by hand.",
        "`index.json` says the same to programs. The software's licence does not cover these",
        "files: each set keeps the licence of its publisher, as stated below.",
    ]
    for row in index:
        lines += ["", f"## {row['name']}: {row['title']}", ""]
        lines += [
            f"- Kind: {row['kind']}.",
            f"- Licence: [{row['licence']}]({row['licence_url']}).",
        ]
        lines += [f"- Attribution: {row['attribution']}.", f"- Source: <{row['source']}>."]
        lines += [f"- Changes made: {row['changes']}"]
        columns = ", ".join(f"`{name}` = `{stream}`" for name, stream in row["columns"].items())
        lines += [f"- Columns: `time` (UTC), {columns}; target `{row['target']}` in {row['unit']}."]
        lines += ["", "| file | rows | bytes | SHA-256 |", "| --- | ---: | ---: | --- |"]
        for x in row["files"]:
            size = (out / x["path"]).stat().st_size
            lines.append(f"| `{x['path']}` | {x['rows']} | {size} | `{x['sha256']}` |")
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Write every sample, the index and the README."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="folder with the public sets")
    parser.add_argument("--out", type=Path, default=DATA, help="where the samples go")
    chosen = parser.parse_args(argv)
    index = [entry(recipe, chosen.data, chosen.out) for recipe in RECIPES]
    text = json.dumps({"format": 1, "sets": index}, indent=1) + "\n"
    (chosen.out / "index.json").write_text(text, encoding="utf-8")
    (chosen.out / "README.md").write_text(readme(index, chosen.out), encoding="utf-8")
    total = sum((chosen.out / x["path"]).stat().st_size for row in index for x in row["files"])
    print(f"wrote {sum(len(row['files']) for row in index)} files, {total / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
