"""Compare every rule with ByzFL, ByzPy, krum and both of Flower's interfaces, in one run.

    python tools/bench_rules.py                              # what this interpreter has; all sizes
    python tools/bench_rules.py --peers PYTHON --sizes 10x42003,100x42003 --threads 1
    python tools/bench_rules.py --json FILE --markdown FILE

Compare ratios: times of a shared machine move by two. What is written is the least of many calls,
as processor time for one thread and as wall time for several. PYTHON is an interpreter that has the
peers; a peer that it lacks is left out with the reason. Every library runs in a process of its own,
on the same float32 matrix, after one call that is not timed.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHILD = Path(__file__).with_name("rule_cases.py")
PEERS = ("byzfl", "byzpy", "krum", "flower (old)", "flower (new)")
SIZES = "10x42003,100x42003,1000x42003,100x1000000"
PRODUCTS = frozenset({"krum", "multi_krum", "bulyan", "nnm, mean", "nnm, rows written out"})
"""Cases bound by n² d multiplications; all others are bound by reading the rows."""


@dataclass
class Found:
    """Results of one size and number of threads."""

    n: int
    d: int
    threads: int
    # ``bandwidth`` (bytes a second) and ``flops`` (float32 a second)
    yardsticks: dict[str, float] = field(default_factory=dict)
    # by library and case: ``wall``, ``cpu``, ``extra``, or ``failed``
    cases: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    # libraries that are not there, with the reason
    absent: dict[str, str] = field(default_factory=dict)

    def seconds(self, library: str, case: str) -> float | None:
        """Return the relevant time (processor for one thread, else wall), or None without a measurement."""
        said = self.cases.get(library, {}).get(case, {})
        found = said.get("cpu" if self.threads == 1 else "wall")
        return None if found is None else float(found)

    def fastest(self, case: str) -> tuple[float, str] | None:
        times = [(t, lib) for lib in PEERS if (t := self.seconds(lib, case)) is not None]
        return min(times, default=None)

    def share(self, case: str) -> str:
        """Return a rule's fraction of the machine's limit."""
        took = self.seconds("ours", case) or float("inf")
        if case in PRODUCTS and self.n >= 100:
            return f"{self.n**2 * self.d / took / self.yardsticks['flops']:.0%} flops"
        return f"{4 * self.n * self.d / took / self.yardsticks['bandwidth']:.0%} read"


def measure(python: str, library: str, found: Found, limit: float) -> None:
    """Run one library's cases in children of their own; one that takes too long is killed."""
    done = found.cases.setdefault(library, {})
    skip: list[str] = []
    while True:
        stuck = _one_child(python, library, found, limit, done)
        if stuck is None or stuck in skip:
            return
        skip.append(stuck)


def _one_child(
    python: str, library: str, found: Found, limit: float, done: dict[str, dict[str, Any]]
) -> str | None:
    """Read one child's lines; return the case it was killed in, if it was."""
    count = str(found.threads)
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    env = os.environ | dict.fromkeys(names, count) | {"FLWR_TELEMETRY_ENABLED": "0"}
    size = f"{found.n}x{found.d}"
    command = [python, str(CHILD), library, size, ";".join(done)]
    child = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    current = None
    for line in _lines(child, limit):
        document = json.loads(line)
        if "absent" in document:
            found.absent[library] = document["absent"]
        elif "yardsticks" in document:
            for name, value in document["yardsticks"].items():
                found.yardsticks[name] = max(value, found.yardsticks.get(name, 0.0))
        elif "begins" in document:
            current = document["begins"]
        else:
            done[document.pop("case")] = document
            current = None
    if current is not None:
        why = "killed" if child.returncode and child.returncode != -9 else f"over {limit:g} s"
        done[current] = {"failed": why}
    return current


def _lines(child: subprocess.Popen[str], limit: float) -> Iterator[str]:
    """Yield a child's lines; kill it after ``limit`` seconds without one."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            lines.put(line)
        lines.put(None)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        while (line := lines.get(timeout=limit)) is not None:
            if line.startswith("{"):
                yield line
    except queue.Empty:
        pass
    finally:
        child.kill()
        reader.join()
        child.communicate()


def table(found: Found) -> str:
    """Return one size's times as a Markdown table, a row a rule."""
    libraries = [lib for lib in ("ours", *PEERS) if found.cases.get(lib)]
    head = ["rule", *(f"{lib} (ms)" for lib in libraries), "fastest peer / ours", "limit", "memory"]
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for case, said in found.cases.get("ours", {}).items():
        cells = [_cell(found, lib, case) for lib in libraries]
        took, peer = found.seconds("ours", case), found.fastest(case)
        ratio = f"{peer[0] / took:.1f}" if peer and took else ""
        extra = said.get("extra")
        memory = "" if extra is None else f"{1 + extra:.2f}"
        row = [case, *cells, ratio, found.share(case) if took else "", memory]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def _cell(found: Found, library: str, case: str) -> str:
    case_result = found.cases[library].get(case)
    if case_result is None:
        return ""
    took = found.seconds(library, case)
    return f"{1e3 * took:.3g}" if took is not None else str(case_result.get("failed", ""))[:32]


def judged(found: Found) -> list[str]:
    """Return the performance targets, each with its result."""
    out = []
    for case in found.cases.get("ours", {}):
        took, peer = found.seconds("ours", case), found.fastest(case)
        if took is None or peer is None:
            continue
        wanted = 3.0 if case in {"median", "trimmed_mean"} else 1.0
        if peer[0] < wanted * took:
            out.append(f"missed: {case}: {peer[0] / took:.2f} x {peer[1]}, wanted {wanted:g}")
    krum, mean = found.seconds("ours", "krum"), found.seconds("ours", "mean")
    for case in ("nnm, mean", "nnm, rows written out", "bulyan"):
        took = found.seconds("ours", case)
        if krum and took and found.n >= 1000:
            word = "reached" if took <= 1.5 * krum else "missed"
            out.append(f"{word}: {case}: {took / krum:.2f} x krum, wanted at most 1.5")
    if mean:
        part = 4 * found.n * found.d / mean / found.yardsticks["bandwidth"]
        out.append(f"{'reached' if part >= 0.5 else 'missed'}: mean: {part:.0%} of the bandwidth")
    extras = {
        case: said["extra"]
        for case, said in found.cases["ours"].items()
        if said.get("extra") is not None and "written out" not in case  # that holds what it made
    }
    if extras:
        worst = max(extras, key=lambda case: extras[case])
        word = "reached" if extras[worst] <= 0.5 else "missed"
        out.append(f"{word}: memory: at most {1 + extras[worst]:.2f} x the matrix ({worst})")
    return out


def told(found: Found) -> str:
    """Return one size's section."""
    yard = found.yardsticks
    measured = (
        f"This machine reads {yard['bandwidth'] / 1e9:.1f} GB/s from memory and multiplies "
        f"{yard['flops'] / 1e9:.0f} Gflop/s in float32, measured in this run."
    )
    lines = [
        f"### {found.n} x {found.d}, {found.threads} thread{'s' * (found.threads > 1)}",
        "",
        measured,
        "",
        table(found),
        "",
        *(f"- {line}" for line in judged(found)),
        *(f"- not there: {library}: {why}" for library, why in found.absent.items()),
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--threads", default=f"1,{os.cpu_count() or 1}")
    parser.add_argument("--peers", default=sys.executable, help="an interpreter that has them")
    parser.add_argument("--only", default=",".join(PEERS), help="which peers")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds a case may take")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    chosen = parser.parse_args(arguments)
    sections, raw = [], []
    for count in dict.fromkeys(int(one) for one in chosen.threads.split(",")):
        for size in chosen.sizes.split(","):
            n, d = map(int, size.split("x"))
            found = Found(n, d, count)
            began = time.monotonic()
            measure(sys.executable, "ours", found, chosen.limit)
            for library in filter(None, chosen.only.split(",")):
                measure(chosen.peers, library, found, chosen.limit)
            sections.append(told(found))
            print(sections[-1], f"({time.monotonic() - began:.0f} s)\n", flush=True)
            raw.append(_plain(found))
    if chosen.json:
        chosen.json.write_text(json.dumps(raw, indent=1), encoding="utf-8")
    if chosen.markdown:
        chosen.markdown.write_text("\n".join(sections), encoding="utf-8")


def _plain(found: Found) -> Mapping[str, Any]:
    return {**vars(found), "load": os.getloadavg()}


if __name__ == "__main__":
    main()
