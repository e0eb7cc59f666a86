"""Table V: what a round costs on the link, read from the counters of a real fleet's links."""

from __future__ import annotations

PAPER = {"FL": 2636.3, "cfg 1": 360.0, "cfg 2": 150.0, "cfg 3": 0.0}
"""kbit (of 1,024 bits) of scalars a device and round, both ways; [PLFL] Table V."""

LAYER_ONE = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
SHARED = {
    "FL": "all",
    "cfg 1": "lstm.",
    "cfg 2": ",".join(f"lstm.{name}" for name in LAYER_ONE),
    "cfg 3": "none",
}
