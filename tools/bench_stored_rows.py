"""Measure every rule over rows in a file: processor seconds, and memory over the interpreter's.

    python tools/bench_stored_rows.py                         # 100,000 rows of 5,760 numbers, all cases
    python tools/bench_stored_rows.py --rows 20000 --cases "mean;median"
    python tools/bench_stored_rows.py --folder DIR --markdown FILE

The rows take 2.3 GB in the folder, and as much again in order of device id. Every case runs in one
process after another; the kernel's record of its largest memory (VmHWM) is reset before each. The
baseline is the process's memory after its imports. The yardstick is one pass over the same file
that only reads.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from aggregator.rules import Rows, bind
from aggregator.rules.weights import uniform
from aggregator.store.row_file import pending_rows

BYZANTINE = 500
IN_MEMORY = 64_000_000
TRUSTED = "device-000000"


def bucketed(size: int) -> list[dict[str, Any]]:
    """Return the pre-aggregation to groups of so many rows."""
    return [{"name": "bucketing", "size": size}]


def cases(count: int) -> dict[str, dict[str, Any]]:
    """Return the parameters of every case for a number of rows; pairs are compared among 2,000 groups."""
    size, f = max(-(-count // 2000), 2), min(BYZANTINE, count // 400)
    groups = {"f": f if size > 2 else 1, "preaggregation": bucketed(size)}
    return {
        "mean": {},
        "median": {"f": f},
        "trimmed_mean": {"f": f},
        "geometric_median": {"f": f},
        "autogm": {"f": f},
        "centred_clipping": {"f": f},
        "fltrust": {"f": f, "root": TRUSTED},
        "norm_clipping, mean": {"f": f, "preaggregation": ["norm_clipping"]},
        "bucketing, krum": groups,
        "bucketing, multi_krum": groups,
        "bucketing, bulyan": {**groups, "f": min(f, 499)},
        "bucketing, clipped_clustering": groups,
        "bucketing, nnm, trimmed_mean": {**groups, "preaggregation": [*bucketed(size), "nnm"]},
        "bucketing, geometric_median": groups,
    }


def memory(key: str) -> float:
    """Return a line of /proc/self/status in MB: VmRSS, or VmHWM, the largest since the last reset."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in text.splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024 / 1e6


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return a result, its processor seconds and the largest memory meanwhile in MB."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets VmHWM
    began = time.process_time()
    found = work()
    return found, time.process_time() - began, memory("VmHWM")


def spooled(count: int, width: int, folder: Path) -> Mapping[str, Any]:
    """Add updates in random order, as the daemon does; one in 200 is Byzantine, 30 times as long."""
    rng = np.random.default_rng(3)
    add, pending = pending_rows(folder, limit=IN_MEMORY), dict[str, Any]()
    common = rng.normal(size=width).astype(np.float32)
    for number in rng.permutation(count):
        row = common + rng.standard_normal(width, np.float32)
        pending = add(pending, f"device-{number:06}", -30 * row if number % 200 == 199 else row)
    return pending


def read_once(rows: Rows) -> int:
    """Read all rows in the order of the file."""
    for piece in rows.pieces:
        rows.part(piece, 0, rows.width)
    return len(rows)


def main() -> None:
    """Measure the chosen cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=5760)
    parser.add_argument("--cases", help="names, separated by semicolons; left out: all")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--markdown", type=Path, help="also write the table to this file")
    args = parser.parse_args()
    baseline = memory("VmRSS")
    count, width = args.rows, args.width
    pending, seconds, peak = timed(lambda: spooled(count, width, args.folder))
    lines = ["| case | processor, s | passes | memory, MB |", "|---|---:|---:|---:|"]
    lines.append(f"| keep updates in the file | {seconds:.1f} | | {peak - baseline:.0f} |")
    print("\n".join(lines), flush=True)
    rows, seconds, peak = timed(lambda: Rows.of(pending))
    lines.append(f"| order by device id | {seconds:.1f} | | {peak - baseline:.0f} |")
    _, once, peak = timed(lambda: read_once(rows))
    lines.append(f"| read once | {once:.1f} | 1.0 | {peak - baseline:.0f} |")
    print("\n".join(lines[-2:]), flush=True)
    chosen = args.cases.split(";") if args.cases else list(cases(count))
    for case in chosen:
        parameters = cases(count)[case]
        rule = bind(case.rpartition(", ")[2], **parameters)
        verdict, seconds, peak = timed(lambda: rule(rows, uniform(count), {}))  # noqa: B023
        error = float(np.abs(verdict.value).max())
        line = f"| {case} | {seconds:.1f} | {seconds / once:.1f} | {peak - baseline:.0f} |"
        lines.append(line)
        print(line, f"(largest {error:.2f}, {dict(verdict.report)})", flush=True)
    if args.markdown:
        threads = os.environ.get("OMP_NUM_THREADS", "all")
        args.markdown.write_text(f"threads: {threads}\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
