"""A firmware engineer: the README's program, a CSV of one's own, a module of one's own.

    python tests/journeys/firmware.py [--dist dist]

The device's environment has the device wheel alone. The last step needs torch beside this Python.
"""

from __future__ import annotations

import json
import math
import re
import sys
from importlib.util import find_spec
from pathlib import Path

from journey import ROOT, Journey, journey

METER = """
import math, sys
class meter:
    @staticmethod
    def intervals():
        first = 1_700_000_000 // 3600 * 3600
        for hour in range(24 * 10):
            yield first + 3600.0 * hour, 1.0 + 0.5 * math.sin(2 * math.pi * hour / 24)
class display:
    @staticmethod
    def show(forecast):
        print(f"{forecast.median[0]:.3f} {forecast.unit}, by {forecast.source}")
"""
MODULE = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(CELLS, 16), nn.GELU(), nn.Linear(16, 3))

    def forward(self, x):
        return self.body(x).reshape(-1, 1, 3)
"""


def readings(path: Path, device: int, column: str = "kwh") -> None:
    """Write five weeks of hourly energy."""
    rows = [f"time,{column}"]
    for hour in range(24 * 35):
        day, week = 2 * math.pi * hour / 24, 2 * math.pi * hour / 168
        kwh = (
            1 + 0.4 * math.sin(day + device) + 0.2 * math.sin(week) + 0.05 * ((hour * 7) % 11 / 11)
        )
        stamp = f"2026-09-{1 + hour // 24:02d}" if hour < 720 else f"2026-10-{hour // 24 - 29:02d}"
        rows.append(f"{stamp}T{hour % 24:02d}:00:00Z,{kwh:.4f}")
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


def read_me(one: Journey, device: Path) -> None:
    """Run the README's ten lines with a meter that knows nothing but its energy."""
    (snippet,) = re.findall(
        r"```python\n(from edge_sdk.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )
    (one.folder / "readme.py").write_text(METER + snippet, encoding="utf-8")
    last = one.run(device / "python", "readme.py").splitlines()[-1]
    one.expect("kWh, by ", last)
    one.succeed(f"the README's program forecasts {last}", minutes=3)


def own_csv(one: Journey, device: Path) -> None:
    """Forecast from a CSV file by the agent, without any broker."""
    edge = device / "gridfed-edge"
    readings(one.folder / "load.csv", 0)
    one.expect("elec.import.energy", one.run(edge, "check", "meter.toml"))
    agent = one.start(edge, "run", "meter.toml", log="agent.log")

    def has_read() -> bool:
        try:
            return bool(
                json.loads(one.run(edge, "status", "meter.toml", "--json"))["readings"] > 800
            )
        except Exception:  # noqa: BLE001 - no state yet
            return False

    one.until("the agent has read the file", has_read)
    one.stop(agent)
    told = one.run(edge, "forecast", "meter.toml").strip().splitlines()[-1]
    one.step(f"gridfed-edge forecast: {told}")
    one.run(edge, "backtest", "meter.toml", "--days", "7")
    one.step("gridfed-edge backtest scored the record")


def own_module(one: Journey) -> None:
    """Export a torch module and train it on three CSV files over a broker."""
    manifest = json.loads((ROOT / "edge_sdk/bundles/load-week-1/manifest.json").read_text("utf-8"))
    cells = len(manifest["golden"]["x"]) * len(manifest["golden"]["x"][0])
    (one.folder / "own.py").write_text(MODULE.replace("CELLS", str(cells)), encoding="utf-8")
    here = {"PYTHONPATH": str(ROOT)}
    told = one.run(
        *(sys.executable, "-m", "aggregator", "export", "own.py:Net", "bundles/own"),
        *("--key", "server/root.key", "--like", "load-week-1", "--shared", "body."),
        **here,
    )
    one.expect("checked against torch", told)
    one.step("the module is exported")
    (one.folder / "records").mkdir()
    for number in range(3):
        readings(one.folder / "records" / f"meter-{number}.csv", number, "load_kwh")
    told = one.run(
        *(sys.executable, "-m", "firmware_sim", "fleet", "--bundle", "bundles/own", "--in-process"),
        *("--data", "records", "--days", "28", "--rounds", "3", "--steps", "4", "--json"),
        **here,
    )
    one.expect('"rounds": 3', told)
    one.step("three devices trained it on their CSV files, three rounds")


def main() -> None:
    """Run the journey."""
    with journey("a firmware engineer") as one:
        device = one.environment("device", "gridfed")
        one.step("the device wheel is installed")
        (one.folder / "aggregator.toml").write_text(
            'fleet = "north"\nstate = "server"\n[run]\nbundle = "load-week-1"\n'
            'method = "fedavg"\nquorum = 1\n',
            encoding="utf-8",
        )
        one.run(sys.executable, "-m", "aggregator", "init", "aggregator.toml", PYTHONPATH=str(ROOT))
        (one.folder / "root.pub").write_bytes((one.folder / "server" / "root.pub").read_bytes())
        text = (ROOT / "examples" / "meter.toml").read_text("utf-8")
        text = text.replace("mqtts://broker.example:8883", "mqtt://127.0.0.1:1")
        text = re.sub(r"^(ca|cert|key)_file = .*\n", "", text, flags=re.MULTILINE)
        text = text.replace('"/var/lib/gridfed"', '"state"')
        (one.folder / "meter.toml").write_text(text, encoding="utf-8")
        one.run(device / "gridfed-edge", "enrol", "meter.toml")
        read_me(one, device)
        own_csv(one, device)
        if find_spec("torch") and find_spec("onnx"):
            own_module(one)
        else:
            one.step("left out: a module of one's own (torch is not installed beside this Python)")


if __name__ == "__main__":
    main()
