"""Run a fleet of the core alone: one aggregator, three meters, a broker, and nothing but their commands.

The meters are programs of their owners (``METER``) that observe, train and forecast by ``Client``. The
rule is ``trimmed_mean``, and every update has local noise. ``tools.core_alone`` runs it in its copy.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from aggregator.extensions.authority.access.broker_process import start

ROUNDS = 3
PATIENCE = 120
"""Seconds in which the meters have the last round's model, on a machine that does other things."""

AGGREGATOR = """\
fleet = "north"
state = "state"
broker = {{ url = "{url}" }}
http = {{ listen = "off" }}
[run]
method = "fedavg"
bundle = "load-week-1"
rounds = {rounds}
quorum = 3
rule = {{ name = "trimmed_mean", f = 1 }}
schedule = {{ rounds_per_day = "continuous", min_new_rows = 0 }}
"""

DEVICE = """\
id = "{name}"
fleet = "north"
state = "state"
bundle = "load-week-1"
broker = {{ url = "{url}" }}
keys = {{ device = "meter.key", root = "../state/root.pub" }}
accept = {{ methods = ["fedavg"] }}
[privacy]
mode = "honest"
mechanism = {{ name = "gaussian", point = "update", clip_norm = 0.1, noise_multiplier = 1.0 }}
budget = {{ epsilon = 30.0, delta = 1e-5 }}
"""

METER = """\
import json, math, sys, time
from edge_sdk import Client, Config, Reading

path, rounds, patience = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
with Client(Config.load(path)) as client:
    now = int(time.time()) // 3600 * 3600
    for at in range(now - 30 * 86400, now - 3600, 3600):
        kwh = 0.8 + 0.5 * math.sin(2 * math.pi * at / 86400)
        client.observe(Reading("elec.import.energy", at, kwh))
    until = time.monotonic() + patience
    while client.status()["version"] < rounds and time.monotonic() < until:
        client.tick()
        time.sleep(0.02)
    status, forecast = client.status(), client.forecast()
    print(json.dumps([status["version"], status["spent"], forecast.source, *forecast.median.tolist()]))
"""


def run(copy: Path) -> list[list[Any]]:
    """Run the fleet on the packages in a folder.

    Args:
        copy: Folder of edge_sdk and aggregator.

    Returns:
        For each meter the model's version, the number of its releases, and its forecast's source and values.

    Raises:
        RuntimeError: A program ended with an error, or a meter does not have the last model.
    """
    environ = os.environ | {"PYTHONPATH": str(copy)}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        url = stack.enter_context(start("auto", folder=folder / "broker")).url
        (folder / "aggregator.toml").write_text(AGGREGATOR.format(url=url, rounds=ROUNDS))
        (folder / "meter.py").write_text(METER)
        _ended(_begun(environ, folder, "-m", "aggregator", "init", "aggregator.toml"))
        meters = [folder / f"meter-{number}" for number in range(1, 4)]
        for meter in meters:
            meter.mkdir()
            (meter / "meter.toml").write_text(DEVICE.format(name=meter.name, url=url))
            _ended(_begun(environ, meter, "-m", "edge_sdk", "enrol", "meter.toml"))
            enrolled = ("enrol", meter.name, "--public", f"{meter.name}/meter.pub")
            config = ("--config", "aggregator.toml")
            _ended(_begun(environ, folder, "-m", "aggregator", *enrolled, *config))
        daemon = _begun(environ, folder, "-m", "aggregator", "run", "aggregator.toml")
        stack.callback(daemon.kill)
        programs = [
            _begun(environ, folder, "meter.py", f"{x.name}/meter.toml", str(ROUNDS), str(PATIENCE))
            for x in meters
        ]
        for one in programs:
            stack.callback(one.kill)
        found = [json.loads(_ended(one).splitlines()[-1]) for one in programs]
        daemon.terminate()
        said = _ended(daemon)
    if behind := [x for x in found if x[0] < ROUNDS or not x[1] > 0 or x[2] != "model"]:
        raise RuntimeError(f"{behind}; the aggregator: {said}")
    return found


def _begun(environ: Mapping[str, str], folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command, pipe = [sys.executable, *arguments], subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=environ, stdout=pipe, stderr=pipe, text=True)


def _ended(program: subprocess.Popen[str]) -> str:
    said, errors = program.communicate(timeout=2 * PATIENCE)
    if program.returncode:
        raise RuntimeError(f"{program.args!r}: {said}{errors}")
    return said
