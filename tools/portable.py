"""Run the numeric tests with the arithmetic kernels of other processors.

    python -m tools.portable [prescott haswell zen skylakex baseline]

OpenBLAS and numpy choose kernels by the processor that they find, so the last digits of a sum
depend on the machine. ``OPENBLAS_CORETYPE`` chooses the BLAS kernels of another processor;
``NPY_DISABLE_CPU_FEATURES`` takes numpy back to what it was compiled for (``baseline``). A setting
that this processor cannot run is left out with the reason. Ends with 1 if a test fails under one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

from edge_sdk.errors import Failure

ROOT = Path(__file__).resolve().parents[1]
NUMERIC = (
    "edge_sdk/methods",
    "edge_sdk/privacy",
    "edge_sdk/runtime",
    "edge_sdk/shared_math",
    "edge_sdk/protocol",
    "aggregator/extensions/papers",
    "edge_sdk/extensions/numpy_engine",
    "edge_sdk/extensions/papers",
    "edge_sdk/extensions/noise_points",
    "aggregator/extensions/analytic",
    "aggregator/extensions/rules",
    "aggregator/methods",
    "aggregator/rules",
    "firmware_sim/attacks",
    "tests/aggregator/extensions/papers",
    "tests/aggregator/extensions/rules",
    "tests/aggregator/methods",
    "tests/aggregator/rules",
    "tests/aggregator/extensions/authoring/test_lipschitz_bound.py",
    "tests/aggregator/extensions/authoring/commands/test_certificate.py",
    "tests/edge_sdk/methods",
    "tests/edge_sdk/privacy",
    "tests/edge_sdk/runtime",
    "tests/edge_sdk/extensions/numpy_engine",
    "tests/edge_sdk/extensions/intervals/test_conformal.py",
    "tests/edge_sdk/forecasting/test_forecast.py",
    "tests/edge_sdk/extensions/peers/test_exchange.py",
    "tests/edge_sdk/extensions/intervals/test_intervals.py",
    "tests/edge_sdk/extensions/evaluation/test_forecast_metrics.py",
    "tests/edge_sdk/extensions/papers",
    "tests/edge_sdk/extensions/peers/test_mixing_matrix.py",
    "tests/edge_sdk/shared_math/test_optim.py",
    "tests/firmware_sim/attacks",
    "tests/firmware_sim/reports/test_evaluation.py",
    "tests/pairs",
    "tests/properties",
)
"""Test folders with numeric results; the others are about messages and processes."""

CORES: Mapping[str, str | None] = {
    "prescott": None,
    "haswell": "X86_V3",
    "zen": "X86_V3",
    "skylakex": "X86_V4",
}
"""OpenBLAS's name of a processor, in lower case, and the instructions that its kernels need."""

BASELINE = "baseline"
CHOSEN = ("prescott", BASELINE)
"""The two settings that differ most from a new processor; a release runs all five."""

_OLD_NAMES = {"X86_V3": "AVX2", "X86_V4": "AVX512_SKX"}  # numpy below 2.4


def dispatched() -> tuple[frozenset[str], tuple[str, ...]]:
    """Return this processor's features, and those for which numpy has kernels of its own."""
    umath = import_module("numpy._core._multiarray_umath")
    features: Mapping[str, bool] = umath.__cpu_features__
    found = frozenset(name for name, is_there in features.items() if is_there)
    return found, tuple(name for name in umath.__cpu_dispatch__ if name in found)


def environment(
    setting: str, found: frozenset[str], reducible: Sequence[str]
) -> dict[str, str] | str:
    """Return a setting's environment variables, or the reason why it cannot run here.

    Args:
        setting: A key of ``CORES``, or ``baseline``.
        found: The processor's features by numpy's names.
        reducible: Those of them that numpy can be told to do without.

    >>> environment("zen", frozenset({"SSE42", "AVX2"}), ["AVX2"])
    {'OPENBLAS_CORETYPE': 'Zen'}
    >>> environment("skylakex", frozenset({"SSE42", "AVX2"}), ["AVX2"])
    'skylakex: this processor has no AVX512_SKX'
    >>> environment("baseline", frozenset({"SSE42", "AVX2"}), ["AVX2"])
    {'NPY_DISABLE_CPU_FEATURES': 'AVX2'}
    """
    if setting == BASELINE:
        if not reducible:
            return "baseline: numpy has no other kernels for this processor"
        return {"NPY_DISABLE_CPU_FEATURES": " ".join(reducible)}
    need = CORES[setting]
    if need is not None and not found & {need, _OLD_NAMES[need]}:
        return f"{setting}: this processor has no {_OLD_NAMES[need]}"
    return {"OPENBLAS_CORETYPE": {"skylakex": "SkylakeX"}.get(setting, setting.capitalize())}


def main(args: Sequence[str] | None = None) -> int:
    """Run the numeric tests once for every setting; return 1 if any failed."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tools.portable")
    parser.add_argument(
        "settings", nargs="*", default=CHOSEN, help=f"of {', '.join(CORES)}, {BASELINE}"
    )
    parser.add_argument(
        "--workers", default="2", help="of pytest-xdist; 0 runs one test after another"
    )
    options = parser.parse_args(args)
    unknown = [one for one in options.settings if one not in (*CORES, BASELINE)]
    if unknown:
        raise Failure(f"unknown setting {unknown[0]!r} (settings: {', '.join((*CORES, BASELINE))})")
    found, reducible = dispatched()
    failed = []
    for setting in options.settings:
        more = environment(setting, found, reducible)
        if isinstance(more, str):
            print(f"left out: {more}", flush=True)
            continue
        shown = " ".join(f"{name}='{value}'" for name, value in more.items())
        print(f"{setting}: {shown}", flush=True)
        begun = time.monotonic()
        chosen = ["-n", options.workers, "--dist", "worksteal", "-q", "-r", "fE"]
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                *chosen,
                "-m",
                "not bench and not soak and not slow and not chaos",
                *NUMERIC,
            ],
            cwd=ROOT,
            env=os.environ | more,
            check=False,
        )
        print(f"{setting}: {(time.monotonic() - begun) / 60:.1f} minutes", flush=True)
        failed += [setting] if done.returncode else []
    if failed:
        print(f"failed under: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        sys.exit(f"portable: {failure}")
