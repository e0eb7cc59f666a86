"""Records and results of a sweep as files: each run with its inputs, tidy tables, a folder that MLflow reads.

The layout of the folder is that of MLflow's ``FileStore``: a folder for each experiment, and in it a folder
for each run with ``meta.yaml``, ``params``, ``metrics`` and ``tags``.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from edge_sdk.bundle import shipped_folder, shipped_names
from edge_sdk.protocol.contract.archive import MANIFEST
from edge_sdk.protocol.keys import write_atomically
from firmware_sim.fleet.histories import manifest_of
from firmware_sim.samples import SampleSet
from firmware_sim.scenario import Scenario

# columns of the table; ``state`` is the digest of the final state, equal for equal runs
COLUMNS = (
    *("run", "method", "rule", "encoding", "attack", "seed", "device"),
    *("mae", "rmse", "windows", "rounds", "updates", "bytes_up", "bytes_down", "state"),
)


def rows_of(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each run and evaluated device, in the order of the records."""
    return [
        {
            "run": record["name"],
            **{key: record["cell"][key] for key in COLUMNS[1:6]},
            "device": device,
            **{key: error[key] for key in ("mae", "rmse", "windows")},
            **{key: record["result"][key] for key in COLUMNS[10:]},
        }
        for record in records
        for device, error in record["errors"].items()
    ]


def write_tables(records: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    """Write ``results.csv``, and ``results.parquet`` where pyarrow is installed; return the files."""
    rows = rows_of(records)
    out = io.StringIO(newline="")
    table = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    written = [folder / "results.csv"]
    write_whole(written[0], out.getvalue().encode())
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra
        from pyarrow import parquet  # noqa: PLC0415 - as above
    except ImportError:
        return written
    columns = {name: [row[name] for row in rows] for name in COLUMNS}
    data = pa.BufferOutputStream()
    parquet.write_table(pa.table(columns), data)
    written.append(folder / "results.parquet")
    write_whole(written[1], data.getvalue().to_pybytes())
    return written


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file in one step; a killed process leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data, 0o666)


_FINISHED, _LOCAL = 3, 4  # MLflow's run status and source type
_PARAMS = ("method", "rule", "encoding", "attack", "seed")


def write_mlflow(records: Sequence[Mapping[str, Any]], folder: Path, experiment: str) -> Path:
    """Write the runs as one experiment, existing ones again; return the folder to name to MLflow."""
    store = folder / "mlflow"
    number = str(int(hashlib.sha256(experiment.encode()).hexdigest()[:15], 16))
    home = store / number
    times = [int(1000 * record["began"]) for record in records] or [0]
    meta = {
        "artifact_location": home.absolute().as_uri(),
        "creation_time": min(times),
        "experiment_id": number,
        "last_update_time": max(times),
        "lifecycle_stage": "active",
        "name": experiment,
    }
    write_whole(home / "meta.yaml", _yaml(meta))
    for record in records:
        _write_run(record, home, number)
    return store


def _write_run(record: Mapping[str, Any], home: Path, experiment: str) -> None:
    run_id = hashlib.sha256(record["name"].encode()).hexdigest()[:32]
    run, began = home / run_id, int(1000 * record["began"])
    (run / "artifacts").mkdir(parents=True, exist_ok=True)
    meta = {
        "artifact_uri": (run / "artifacts").absolute().as_uri(),
        "end_time": began + int(1000 * record["result"]["seconds"]),
        "entry_point_name": "",
        "experiment_id": experiment,
        "lifecycle_stage": "active",
        "run_id": run_id,
        "run_name": record["name"],
        "run_uuid": run_id,
        "source_name": "",
        "source_type": _LOCAL,
        "source_version": "",
        "start_time": began,
        "status": _FINISHED,
        "tags": [],
        "user_id": "",
    }
    settings = {f"settings.{key}": value for key, value in record["cell"]["settings"].items()}
    for key, value in {**{k: record["cell"][k] for k in _PARAMS}, **settings}.items():
        write_whole(run / "params" / key, str(value).encode())
    losses = [(row["round"], row["loss"]) for row in record["rounds"] if row["loss"] is not None]
    _write_metric(run, "loss", began, losses)
    for key in ("mae", "rmse"):
        values = [error[key] for error in record["errors"].values()]
        _write_metric(run, key, began, [(0, sum(values) / len(values))] if values else [])
    write_whole(run / "tags" / "mlflow.runName", record["name"].encode())
    write_whole(run / "tags" / "state", record["result"]["state"].encode())
    write_whole(run / "artifacts" / "record.json", json.dumps(record, indent=1).encode())
    write_whole(run / "meta.yaml", _yaml(meta))


def _write_metric(run: Path, name: str, time: int, steps: Sequence[tuple[int, float]]) -> None:
    if steps:
        lines = (f"{time} {value!r} {step}\n" for step, value in steps)
        write_whole(run / "metrics" / name, "".join(lines).encode())


def _yaml(meta: Mapping[str, Any]) -> bytes:
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in meta.items()).encode()


FORMAT = 1  # version of the record's format
_PACKAGES = ("gridfed", "numpy", "onnxruntime", "msgpack", "cryptography", "torch")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that compute the results."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Return processor, cores, memory and system of this machine; no name and no address."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    known = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(known, platform.processor())


def definition(chosen: Scenario, samples: SampleSet, seeds: list[int]) -> dict[str, Any]:
    """Return the inputs of a sweep's results, besides versions and machine.

    Readings and bundle are named by the SHA-256 of their files.
    """
    scenario = json.loads(json.dumps(asdict(chosen), default=str))
    return {
        "format": FORMAT,
        "scenario": scenario,
        "seeds": seeds,
        "readings": {
            sample.path.name: _digest(sample.path) for sample in samples.samples[: chosen.devices]
        },
        "bundle": {
            "name": manifest_of(chosen.bundle).name,
            "version": manifest_of(chosen.bundle).version,
            "files": _bundle_digest(chosen.bundle),
        },
    }


def digest_of(document: dict[str, Any]) -> str:
    """Return the SHA-256 of a JSON document, hexadecimal; the order of keys has no influence."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _bundle_digest(bundle: str) -> str:
    folder = shipped_folder() / bundle if bundle in shipped_names() else Path(bundle)
    return _digest(folder / MANIFEST)  # which holds the digests of the other files


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
