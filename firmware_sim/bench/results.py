"""Records and results of a sweep as files: each run with its inputs, and a tidy table."""

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


def write_table(records: Sequence[Mapping[str, Any]], folder: Path) -> Path:
    """Write ``results.csv``; return the file."""
    out = io.StringIO(newline="")
    table = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows(rows_of(records))
    path = folder / "results.csv"
    write_whole(path, out.getvalue().encode())
    return path


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file in one step; a killed process leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data, 0o666)


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
