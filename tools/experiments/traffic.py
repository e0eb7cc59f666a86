"""Table V: bytes of a round on the link, from the counters of a real fleet's links."""

from __future__ import annotations

import json
import subprocess
import sys

PAPER = {"FL": 2636.3, "cfg 1": 360.0, "cfg 2": 150.0}
"""kbit (of 1,024 bits) of scalars a device and round, both ways; [PLFL] Table V.

Configuration 3 has no rounds to count: nothing is shared, so nothing is asked for or sent.
"""

LAYER_ONE = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
SHARED = {
    "FL": "all",
    "cfg 1": "lstm.",
    "cfg 2": ",".join(f"lstm.{name}" for name in LAYER_ONE),
}
ROUNDS = 10


def counted(shared: str) -> dict[str, float]:
    """Run four devices over a real broker; return bytes for each device and round, up and down."""
    command = [sys.executable, "-m", "firmware_sim", "fleet", "--json", "--processes"]
    command += ["--devices", "4", "--rounds", str(ROUNDS), "--shared", shared]
    done = subprocess.run(
        [*command, "--bundle", "load-lstm-week"],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    account: dict[str, float] = json.loads(done.stdout)["per_device_and_round"]
    return account


def table() -> str:
    """Return a table of measured bytes beside the paper's scalars."""
    lines = [
        "| | up, bytes | down, bytes | both, kbit | paper, kbit of scalars | ours / paper |",
        "|---|---|---|---|---|---|",
    ]
    for name, shared in SHARED.items():
        account = counted(shared)
        up, down = account["bytes_up"], account["bytes_down"]
        kbit = 8 * (up + down) / 1024
        ratio = kbit / PAPER[name]
        lines.append(
            f"| {name} | {up:.0f} | {down:.0f} | {kbit:.1f} | {PAPER[name]} | {ratio:.3f} |"
        )
    return "\n".join(lines)
