"""Results of a sweep as tidy tables: one row for each run and device."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from firmware_sim.bench.files import write_whole

COLUMNS = (
    *("run", "method", "rule", "encoding", "attack", "seed", "device"),
    *("mae", "rmse", "windows", "rounds", "updates", "bytes_up", "bytes_down", "state"),
)
"""Columns of the table; ``state`` is the digest of the final state, equal for equal runs."""


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
    """Write ``results.csv``, and ``results.parquet`` where pyarrow is installed.

    Returns:
        The files that were written.
    """
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
