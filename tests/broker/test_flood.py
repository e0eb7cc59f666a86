"""One enrolled device floods a real Mosquitto; the rounds of the others go on, and it is named."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest

from aggregator.extensions.authority.access.broker_process import mosquitto_program
from firmware_sim.fleet.federation import Federation, fetched, free_port, start_broker
from firmware_sim.fleet.processes import ProcessGroup, command, run
from firmware_sim.fleet.run_files import prepare
from firmware_sim.samples import sample_set
from firmware_sim.scenario import RunSettings, Scenario

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(300)]

FLEET = "trial"
HONEST = 4
DEADLINE = 240
ENDLESS = Scenario(
    "a flood",
    samples="homes",
    devices=HONEST + 1,
    bundle="load-mlp",
    run=RunSettings("fedavg", None, 100_000, {"steps": 2}, HONEST, f"{DEADLINE}s"),
    until="2018-02-01",
)


def until(done: Callable[[], object], family: ProcessGroup, limit: float = 120.0) -> None:
    end = time.monotonic() + limit
    while not done():
        family.require_running()
        assert time.monotonic() < end, f"not within {limit:.0f} s"
        time.sleep(0.1)


@contextmanager
def flooding(port: int, device: str):
    """Send 20,000 messages of 100 bytes a second in a device's name, quality of service 0."""
    name, topic = device.encode(), f"gf/1/{FLEET}/{device}/up/update".encode()
    hello = b"\x00\x04MQTT\x04\x02" + struct.pack("!HH", 60, len(name) + 6) + name + b"-flood"
    packet = struct.pack("!H", len(topic)) + topic + b"x" * (98 - len(topic))
    burst = (bytes([0x30, len(packet)]) + packet) * 200
    over = threading.Event()

    def send() -> None:
        while not over.wait(0.01):
            connection.sendall(burst)

    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        connection.sendall(bytes([0x10, len(hello)]) + hello)
        assert connection.recv(4) == b"\x20\x02\x00\x00"
        thread = threading.Thread(target=send)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(30)


def test_rounds_close_during_a_flood_and_the_flooding_device_is_named(tmp_path: Path):
    if mosquitto_program() is None:
        pytest.skip("mosquitto is not installed")
    with ProcessGroup(tmp_path / "logs") as family:
        url = start_broker(family, tmp_path / "broker", "mosquitto")
        page = f"127.0.0.1:{free_port()}"
        samples = sample_set(ENDLESS.samples)
        made = prepare(tmp_path / "fleet", FLEET, ENDLESS, samples, broker=url, page=page)
        federation = Federation(made, ENDLESS.run.rounds, family)
        federation.start_aggregator()
        for device in made.devices[:HONEST]:
            federation.start_device(device)
        bad = made.devices[HONEST].id

        def status():
            return json.loads(fetched(page, "/status") or "{}")

        def version() -> int:
            return status().get("run", {}).get("version", 0)

        until(lambda: version() >= 2, family)
        with flooding(int(url.rsplit(":", 1)[1]), bad):
            until(lambda: bad in status().get("flooding", {}), family)
            assert f"gridfed-aggregator revoke {bad}" in status()["flooding"][bad]
            named = version()
            until(lambda: version() >= named + 6, family)
            closed = [one for one in status()["rounds"] if one["version"] > named + 1]
        assert len(closed) >= 4
        assert all(one["result"] == "moved" and one["seconds"] < DEADLINE / 2 for one in closed)
        # gauges are measured once a second, and six rounds may close within one
        until(lambda: "gridfed_devices_flooding 1.0" in (fetched(page, "/metrics") or ""), family)
        run(command("gridfed-aggregator", "revoke", bad, "--config", str(made.aggregator)))
        until(lambda: status()["devices"]["enrolled"] == HONEST, family)
        assert bad in status()["flooding"]
