"""Measure every rule over rows in a file: processor seconds, and memory over the interpreter's.

    python tools/bench_stored_rows.py                         # 100,000 rows of 5,760 numbers, all cases
    python tools/bench_stored_rows.py --rows 20000 --cases "mean;median"
    python tools/bench_stored_rows.py --folder DIR --markdown FILE
    python tools/bench_stored_rows.py --rows 20000 --ray      # also on a Ray cluster of this machine

The rows take 2.3 GB in the folder, and as much again in order of device id. Every case runs in one
process after another; the kernel's record of its largest memory (VmHWM) is reset before each. The
baseline is the process's memory after its imports. The yardstick is one pass over the same file
that only reads. With ``--ray`` every case is computed in this process and on a Ray cluster instead;
the table compares wall clocks, and other bits end the command with an error.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from aggregator.rules import Rows, bind
from aggregator.rules.blocked_ops import executed_by
from aggregator.rules.parameters import uniform
from aggregator.store.row_file import pending_rows
from firmware_sim.bench.ray_runs import LOCAL, RayColumns, ray_cluster

BYZANTINE = 500
IN_MEMORY = 64_000_000
TRUSTED = "device-000000"
COMPARED = ["| case | one process, s | Ray, s | ratio |", "|---|---:|---:|---:|"]


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


def in_one_process(
    rows: Rows, chosen: list[str], once: float, baseline: float
) -> Iterator[tuple[str, str]]:
    """Measure cases; return a line of the table and a remark for each."""
    for case in chosen:
        rule = rule_of(case, len(rows))
        verdict, seconds, peak = timed(lambda: rule(rows, uniform(len(rows)), {}))  # noqa: B023
        error = float(np.abs(verdict.value).max())
        line = f"| {case} | {seconds:.1f} | {seconds / once:.1f} | {peak - baseline:.0f} |"
        yield line, f"(largest {error:.2f}, {dict(verdict.report)})"


def on_ray(
    rows: Rows, chosen: list[str], address: str, processors: int | None
) -> Iterator[tuple[str, str]]:
    """Compute cases here and on a cluster; return a line of the table and a remark for each.

    Raises:
        SystemExit: The bits differ.
    """
    begun = time.monotonic()
    with ray_cluster(address, processors) as cluster:
        yield f"| start of the cluster | | {time.monotonic() - begun:.1f} | |", ""
        for case in chosen:
            rule, seconds, found = rule_of(case, len(rows)), list[float](), list[bytes]()
            for executor in (nullcontext(), executed_by(RayColumns(cluster.ray))):
                begun = time.monotonic()
                with executor:
                    found.append(rule(rows, uniform(len(rows)), {}).value.tobytes())
                seconds.append(time.monotonic() - begun)
            if found[0] != found[1]:
                raise SystemExit(f"{case}: other bits on the cluster")
            here, there = seconds
            yield f"| {case} | {here:.1f} | {there:.1f} | {there / here:.1f} |", "(equal bits)"


def rule_of(case: str, count: int) -> Any:  # noqa: ANN401 - a bound rule
    return bind(case.rpartition(", ")[2], **cases(count)[case])


def main() -> None:
    """Measure the chosen cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=5760)
    parser.add_argument("--cases", help="names, separated by semicolons; left out: all")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--ray", nargs="?", const=LOCAL, metavar="ADDRESS")
    parser.add_argument("--processors", type=int, help="processors of a cluster on this machine")
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
    measured = in_one_process(rows, chosen, once, baseline)
    if args.ray:
        lines, measured = COMPARED, on_ray(rows, chosen, args.ray, args.processors)
        print("\n".join(lines), flush=True)
    for line, note in measured:
        lines = [*lines, line]
        print(line, note, flush=True)
    if args.markdown:
        threads = os.environ.get("OMP_NUM_THREADS", "all")
        args.markdown.write_text(f"threads: {threads}\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
