"""One meter: a folder with a configuration, readings, and the installed agent on it."""

from __future__ import annotations

import http.client
import math
import os
import signal
import subprocess
import sys
import time

from edge_sdk.protocol import keys

PATIENCE = 600.0
HOUR = 3600

TOML = """
id = "meter-1"
fleet = "north"
state = "state"
bundle = "BUNDLE"
heartbeat = "beat"
broker = { url = "mqtt://127.0.0.1:1" }
keys = { device = "meter.key", root = "root.pub" }
privacy = { mechanism = { name = "none" } }
[[source]]
type = "csv"
path = "load.csv"
time_format = "epoch"
columns = { kwh = "elec.import.energy" }
"""


class Meter:
    """A folder with a configuration, eight days of readings, and the agent on it."""

    def __init__(self, folder, more, bundle="load-week-1"):
        self.folder, self.config = folder, folder / "meter.toml"
        self.config.write_text(TOML.replace("BUNDLE", bundle) + more)
        keys.save_public(folder / "root.pub", keys.from_seed(b"r" * 32).public)
        self.end = int(time.time()) // HOUR * HOUR
        rows = [
            f"{self.end - HOUR * i},{1 + math.sin(i / 24 * math.tau) / 2:.3f}\n"
            for i in range(8 * 24, 0, -1)
        ]
        (folder / "load.csv").write_text("time,kwh\n" + "".join(rows))
        assert self.edge("enrol").returncode == 0
        self.process = None

    def edge(self, *words):
        at = 2 if words[0] == "source" else 1
        return subprocess.run(
            [sys.executable, "-m", "edge_sdk", *words[:at], str(self.config), *words[at:]],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )

    def start(self, **environ):
        self.log = (self.folder / "log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "edge_sdk", "run", str(self.config)],
            stdout=self.log,
            stderr=self.log,
            env=os.environ | environ,
        )

    def stop(self, number=signal.SIGTERM):
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(PATIENCE)
            self.process = None
            self.log.close()

    @property
    def said(self):
        return (self.folder / "log").read_text()

    def until(self, done, serve=lambda: time.sleep(0.05)):
        end = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < end, self.said
            assert self.process.poll() is None, self.said
            serve()


def fetched(port, path):
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        link.request("GET", path)
        answer = link.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        link.close()
