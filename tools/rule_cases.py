"""One library's rules on one matrix: a child of ``bench_rules.py``; one JSON line a case.

    python tools/rule_cases.py LIBRARY NxD [CASE;...]      all cases but these

Every library gets the same float32 matrix in the form it wants, made before the clock starts. Run
by an interpreter that has the library; it needs numpy besides.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import tracemalloc
import types
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

Call = Callable[[], Any]
Cases = Mapping[str, Call]

SECONDS = 1.0  # measured for about so long
PARTS = (80, 120, 240, 480)  # layers that Flower's lists of arrays are cut into, in thousandths


def matrix(n: int, d: int) -> np.ndarray[Any, Any]:
    """Return honest float32 rows about one common vector."""
    rng = np.random.default_rng(0)
    common = rng.standard_normal(d, dtype=np.float32) * np.float32(0.1)
    return rng.standard_normal((n, d), dtype=np.float32) * np.float32(0.01) + common


def assumed(n: int) -> tuple[int, int]:
    return n // 5, (n - 3) // 4


def ours(x: Any) -> Cases:  # noqa: ANN401 - a float32 matrix
    """This project's rules, as the aggregator calls them."""
    from aggregator.rules import Rows, bind  # noqa: PLC0415
    from aggregator.rules.parameters import uniform  # noqa: PLC0415
    from aggregator.rules.preaggregation import nnm  # noqa: PLC0415

    n, d = x.shape
    (f, fb), ids, even = assumed(n), tuple(f"m{i:05}" for i in range(n)), uniform(n)

    def rule(name: str, **parameters: Any) -> Call:  # noqa: ANN401
        bound = bind(name, **parameters)
        memory: dict[str, Any] = {}

        def call() -> None:
            verdict = bound(Rows(ids, x), even, memory)
            memory.update(verdict.memory)

        return call

    def written_out() -> None:
        mixed, out = nnm(Rows(ids, x), f=f), np.empty_like(x)
        for start in range(0, d, 4096):
            out[:, start : start + 4096] = mixed.block(start, min(start + 4096, d))

    clip = {"name": "norm_clipping", "radius": 2.0}
    return {
        "mean": rule("mean"),
        "median": rule("median"),
        "trimmed_mean": rule("trimmed_mean", f=f),
        "krum": rule("krum", f=f),
        "multi_krum": rule("multi_krum", f=f),
        "bulyan": rule("bulyan", f=fb),
        "geometric_median": rule("geometric_median"),
        "autogm": rule("autogm"),
        "centred_clipping": rule("centred_clipping", steps=1, radius=1.0),
        "clipped_clustering": rule("clipped_clustering"),
        "fltrust": rule("fltrust", root=ids[0]),
        "mean_around_median": rule("mean_around_median", f=f),
        "mda": rule("mda", f=f),
        "monna": rule("monna", f=f, root=ids[0]),
        "dnc": rule("dnc", f=f),
        "caf": rule("caf", f=f),
        "arc, mean": rule("mean", f=f, preaggregation=["arc"]),
        "nnm, mean": rule("mean", f=f, preaggregation=["nnm"]),
        "nnm, trimmed_mean": rule("trimmed_mean", f=f, preaggregation=["nnm"]),
        "nnm, rows written out": written_out,
        "bucketing, mean": rule("mean", preaggregation=["bucketing"]),
        "bucketing, krum": rule("krum", f=f // 2, preaggregation=["bucketing"]),
        "norm_clipping, mean": rule("mean", preaggregation=[clip]),
    }


def byzfl(x: Any) -> Cases:  # noqa: ANN401
    """ByzFL 0.0.11 on a torch tensor; its geometric median makes 3 steps."""
    sys.modules.setdefault("byzfl.benchmark", types.ModuleType("byzfl.benchmark"))
    import byzfl as b  # noqa: PLC0415
    import torch  # noqa: PLC0415

    v, (f, _) = torch.from_numpy(x), assumed(len(x))
    nnm, mean, trimmed = b.NNM(f), b.Average(), b.TrMean(f)
    buckets, krum, clip, arc = b.Bucketing(2), b.Krum(f // 2), b.Clipping(2.0), b.ARC(f)
    one = {
        "mean": mean,
        "median": b.Median(),
        "trimmed_mean": trimmed,
        "krum": b.Krum(f),
        "multi_krum": b.MultiKrum(f),
        "geometric_median": b.GeometricMedian(nu=0.1, T=3),
        "centred_clipping": b.CenteredClipping(L=1, tau=1.0),
        "mean_around_median": b.Meamed(f),
        "monna": b.MoNNA(f),
        "caf": b.CAF(f),
        "nnm, rows written out": nnm,
    } | ({"mda": b.MDA(f)} if len(x) <= 20 else {})  # it tries every subset
    return {name: partial(rule, v) for name, rule in one.items()} | {
        "nnm, mean": lambda: mean(nnm(v)),
        "nnm, trimmed_mean": lambda: trimmed(nnm(v)),
        "bucketing, mean": lambda: mean(buckets(v)),
        "bucketing, krum": lambda: krum(buckets(v)),
        "norm_clipping, mean": lambda: mean(clip(v)),
        "arc, mean": Fresh(lambda rows: mean(arc(rows)), v.clone),  # it writes into its argument
    }


def byzpy(x: Any) -> Cases:  # noqa: ANN401
    """ByzPy 0.1.4 on a list of torch tensors; its median of an even number is the lower one."""
    import torch  # noqa: PLC0415
    from byzpy.aggregators.coordinate_wise.median import CoordinateWiseMedian  # noqa: PLC0415
    from byzpy.aggregators.coordinate_wise.trimmed_mean import (  # noqa: PLC0415
        CoordinateWiseTrimmedMean,
    )
    from byzpy.aggregators.geometric_wise.geometric_median import GeometricMedian  # noqa: PLC0415
    from byzpy.aggregators.geometric_wise.krum import Krum, MultiKrum  # noqa: PLC0415
    from byzpy.aggregators.norm_wise.center_clipping import CenteredClipping  # noqa: PLC0415
    from byzpy.pre_aggregators.bucketing import Bucketing  # noqa: PLC0415
    from byzpy.pre_aggregators.nnm import NearestNeighborMixing  # noqa: PLC0415

    n, rows = len(x), list(torch.from_numpy(x))
    f, _ = assumed(n)
    one = {
        "median": CoordinateWiseMedian(),
        "trimmed_mean": CoordinateWiseTrimmedMean(f),
        "krum": Krum(f),
        "multi_krum": MultiKrum(f, n - f),
        "geometric_median": GeometricMedian(),
        "centred_clipping": CenteredClipping(c_tau=1.0, M=1),
    }
    nnm, buckets, krum = NearestNeighborMixing(f), Bucketing(2), Krum(f // 2)
    trimmed = one["trimmed_mean"]
    return {name: partial(rule.aggregate, rows) for name, rule in one.items()} | {
        "nnm, rows written out": lambda: nnm.pre_aggregate(rows),
        "nnm, mean": lambda: torch.stack(list(nnm.pre_aggregate(rows))).mean(0),
        "nnm, trimmed_mean": lambda: trimmed.aggregate(list(nnm.pre_aggregate(rows))),
        "bucketing, mean": lambda: torch.stack(list(buckets.pre_aggregate(rows))).mean(0),
        "bucketing, krum": lambda: krum.aggregate(list(buckets.pre_aggregate(rows))),
    }


def krum(x: Any) -> Cases:  # noqa: ANN401
    """Package krum 0.9.1 on a torch tensor."""
    import torch  # noqa: PLC0415
    from krum.primitives.aggregators.average import Average  # noqa: PLC0415
    from krum.primitives.aggregators.bulyan import Bulyan  # noqa: PLC0415
    from krum.primitives.aggregators.geometric_median import GeometricMedian  # noqa: PLC0415
    from krum.primitives.aggregators.krum import Krum  # noqa: PLC0415
    from krum.primitives.aggregators.median import Median  # noqa: PLC0415
    from krum.primitives.aggregators.multikrum import MultiKrum  # noqa: PLC0415
    from krum.primitives.aggregators.trimmed_mean import TrimmedMean  # noqa: PLC0415

    n, v = len(x), torch.from_numpy(x)
    f, fb = assumed(n)
    one: dict[str, tuple[Any, dict[str, int]]] = {
        "mean": (Average, {}),
        "median": (Median, {}),
        "trimmed_mean": (TrimmedMean, {"n": n, "f": f}),
        "krum": (Krum, {"n": n, "f": f}),
        "multi_krum": (MultiKrum, {"n": n, "f": f, "m": n - f}),
        "bulyan": (Bulyan, {"n": n, "f": fb}),
        "geometric_median": (GeometricMedian, {"n": n, "f": f}),
    }
    return {name: partial(rule.aggregate, v, **said) for name, (rule, said) in one.items()}


def flower_old(x: Any) -> Cases:  # noqa: ANN401
    """Flower's ``flwr.server.strategy.aggregate`` on lists of arrays."""
    from flwr.server.strategy import aggregate as a  # noqa: PLC0415

    n = len(x)
    f, fb = assumed(n)
    results = [(_layers(row), 2000) for row in x]
    return {
        "mean": lambda: a.aggregate(results),
        "median": lambda: a.aggregate_median(results),
        "trimmed_mean": lambda: a.aggregate_trimmed_avg(results, 0.2),
        "krum": lambda: a.aggregate_krum(results, f, 0),
        "multi_krum": lambda: a.aggregate_krum(results, f, n - f),
        "bulyan": lambda: a.aggregate_bulyan(list(results), fb, a.aggregate_krum, to_keep=0),
    }


def flower_new(x: Any) -> Cases:  # noqa: ANN401
    """Flower's ``flwr.serverapp.strategy`` on messages; reading them is inside its calls."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict  # noqa: PLC0415
    from flwr.serverapp import strategy as s  # noqa: PLC0415
    from flwr.supercore.task_identity import TaskIdentity  # noqa: PLC0415

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    f, fb = assumed(len(x))

    def replies() -> list[Any]:
        out = []
        for row in x:
            asked = Message(content=RecordDict(), dst_node_id=1, message_type="train")
            values: dict[str, Any] = {
                "arrays": ArrayRecord(_layers(row)),
                "metrics": MetricRecord({"num-examples": 2000}),
            }
            out.append(Message(content=RecordDict(values), reply_to=asked))
        return out

    bulyan: Any = s.Bulyan(num_malicious_nodes=fb)
    bulyan.current_arrays = ArrayRecord(_layers(x[0]))
    one = {
        "mean": s.FedAvg(),
        "median": s.FedMedian(),
        "trimmed_mean": s.FedTrimmedAvg(beta=0.2),
        "krum": s.Krum(num_malicious_nodes=f),
        "multi_krum": s.MultiKrum(num_malicious_nodes=f, num_nodes_to_select=len(x) - f),
        "bulyan": bulyan,
    }
    return {name: Fresh(partial(rule.aggregate_train, 1), replies) for name, rule in one.items()}


class Fresh:
    """Call that consumes its argument, which is made again before each call, outside the timing."""

    def __init__(self, call: Callable[[Any], Any], make: Call) -> None:
        self._call, self._make = call, make
        self._given: Any = None

    def before(self) -> None:
        self._given = self._make()

    def __call__(self) -> None:
        self._call(self._given)


LIBRARIES: Mapping[str, Callable[[Any], Cases]] = {
    "ours": ours,
    "byzfl": byzfl,
    "byzpy": byzpy,
    "krum": krum,
    "flower (old)": flower_old,
    "flower (new)": flower_new,
}


def yardsticks(x: Any) -> Mapping[str, float]:  # noqa: ANN401
    """Return bytes a second read from memory, and float32 operations a second of a product."""
    read = np.ones(64 * 1024 * 1024, np.float32)  # 256 MiB: larger than any cache here
    square = np.ascontiguousarray(np.resize(x, (2048, 2048)))
    other = square.copy()
    return {
        "bandwidth": read.nbytes / _best(lambda: np.dot(read, read))[0],
        "flops": 2 * 2048**3 / _best(lambda: square @ other)[0],
    }


def _layers(row: Any) -> list[Any]:  # noqa: ANN401
    cuts = np.cumsum([len(row) * part // 1000 for part in PARTS])
    return [piece.copy() for piece in np.split(row, cuts)]


def _best(call: Call) -> tuple[float, float]:
    """Return the least wall and processor seconds of a few calls, after a first."""
    before = getattr(call, "before", lambda: None)
    before()
    end = time.perf_counter() + SECONDS
    call()
    least = 3 if time.perf_counter() < end else 1
    walls: list[float] = []
    cpus: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(walls) < least or (time.perf_counter() < end and len(walls) < 200):
        before()
        wall, cpu = time.perf_counter(), time.process_time()
        call()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return min(walls), min(cpus)


def _extra_memory(call: Call) -> int:
    """Return the most bytes that numpy held at once for a call, besides the matrix."""
    getattr(call, "before", lambda: None)()
    call()
    getattr(call, "before", lambda: None)()
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def tell(**said: Any) -> None:  # noqa: ANN401
    print(json.dumps(said), flush=True)


def main() -> None:
    """Print the library, its yardsticks or the reason of its absence, then one line for each case."""
    warnings.simplefilter("ignore")
    library, size, *rest = sys.argv[1:]
    n, d = map(int, size.split("x"))
    x = matrix(n, d)
    if "torch" not in sys.modules and library in {"byzfl", "byzpy", "krum"}:
        import torch  # noqa: PLC0415

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    try:
        cases = LIBRARIES[library](x)
    except ImportError as error:
        tell(absent=str(error))
        return
    if library == "ours":
        tell(yardsticks=yardsticks(x))
    for name, call in cases.items():
        if rest and name in rest[0].split(";"):
            continue
        tell(begins=name)
        try:
            extra = _extra_memory(call) / x.nbytes if library == "ours" else None
            wall, cpu = _best(call)
        except (RuntimeError, ValueError, MemoryError, TypeError) as error:
            tell(case=name, failed=f"{type(error).__name__}: {str(error)[:80]}")
            continue
        tell(case=name, wall=wall, cpu=cpu, extra=extra)
    if library == "ours":  # once more: a neighbour may have been at work the first time
        tell(yardsticks=yardsticks(x))


if __name__ == "__main__":
    main()
