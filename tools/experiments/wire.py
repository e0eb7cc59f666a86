"""Figure 7: bytes of a firing on the link, from the counters of real fleets' links.

The paper multiplies: twice the model's size, times participants, times rounds. We run BAFDP over a
real broker with ever more devices and set what was counted beside that product.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

from edge_sdk.bundle import Bundle, TrustedKeys
from tools.experiments.claims import Claim
from tools.experiments.papers import FIGURE_7

FLEETS = (2, 4, 6, 8)
ROUNDS = 40
BUNDLE = "cells-mlp-1"
SLACK = 1.25
"""Times the bare numbers that a protocol may cost before the paper's product says nothing."""


def counted(devices: int) -> float:
    """Run a fleet over a real broker; return the bytes on its devices' links, both directions."""
    command = [sys.executable, "-m", "firmware_sim", "fleet", "--json", "--in-process"]
    command += ["--method", "bafdp", "--bundle", BUNDLE, "--like", "cells"]
    command += ["--devices", str(devices), "--rounds", str(ROUNDS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    account: dict[str, float] = json.loads(done.stdout)["per_device_and_round"]
    return (account["bytes_up"] + account["bytes_down"]) * devices * ROUNDS


def product(size: float, participants: int, rounds: int) -> float:
    """Return the paper's product in bytes.

    >>> product(440e6, 10, 10_000) / 1e12
    88.0
    """
    return 2.0 * size * participants * rounds


def measured(options: argparse.Namespace) -> dict[str, float]:
    """Return total bytes by number of devices; counted once, then kept in the output folder."""
    path = options.out / "e12-bytes.json"
    if not path.exists():
        path.write_text(json.dumps({str(n): counted(n) for n in FLEETS}))
    kept: dict[str, float] = json.loads(path.read_text())
    return kept


def judge(found: dict[str, float]) -> Claim:
    """Judge whether the traffic follows the paper's product."""
    size = 4.0 * Bundle.open(BUNDLE, trust=TrustedKeys()).manifest.size
    shares = {n: total / product(size, int(n), ROUNDS) for n, total in found.items()}
    said = ", ".join(f"{n} devices: {x:.3f} of the product" for n, x in shares.items())
    holds = all(1.0 <= x <= SLACK for x in shares.values())
    text = f"counted bytes are 2 x size x participants x rounds, and at most {SLACK - 1:.0%} more"
    return Claim(text, holds, said)


def lines(found: dict[str, float]) -> list[str]:
    """Return the table, and the product for the paper's case."""
    size = 4.0 * Bundle.open(BUNDLE, trust=TrustedKeys()).manifest.size
    rows = [
        f"| {n} | {total / 1e6:.3f} | {product(size, int(n), ROUNDS) / 1e6:.3f} |"
        for n, total in found.items()
    ]
    theirs = product(*FIGURE_7) / 1e12
    return [
        "",
        "### Figure 7: bytes",
        "",
        (
            f"BAFDP over a real broker, {ROUNDS} firings, a model of {size:.0f} bytes. Counted on "
            "the devices' links, bundle, envelopes and receipts included; a Byzantine device sends no less."
        ),
        "",
        "| devices | counted, MB | 2 x size x devices x firings, MB |",
        "|---|---|---|",
        *rows,
        "",
        (
            f"The paper's case (440 MB, 10 participants, 10 000 rounds) is {theirs:.0f} TB by the "
            "product."
        ),
    ]
