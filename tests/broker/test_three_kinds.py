"""One meter, one charger and one base station: one broker, one daemon, three runs, real programs."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace

import pytest

from aggregator.extensions.authority.access.broker_process import mosquitto_program
from aggregator.extensions.authority.access.mosquitto import LARGEST_PACKET
from edge_sdk.link.mqtt import Broker, MqttLink
from edge_sdk.link.transport import Message
from edge_sdk.protocol import topics
from firmware_sim.fleet.federation import Federation, free_port, start_broker
from firmware_sim.fleet.processes import ProcessGroup, command, run
from firmware_sim.fleet.run_files import join, prepare, toml
from firmware_sim.samples import sample_set
from tests.broker.test_federation import SHORT, Trial

pytestmark = [pytest.mark.broker, pytest.mark.slow]

ROUNDS = 3
KINDS = {
    "meter": ("homes", "load-mlp", "2018-02-01"),
    "charger": ("chargers", "chargers-1", ""),
    "cell": ("cells", "cells-mlp-1", ""),
}


def scenario(kind):
    samples, bundle, until = KINDS[kind]
    learning = replace(SHORT.run, quorum=1, rounds=ROUNDS)
    return replace(
        SHORT, samples=samples, devices=1, bundle=bundle, until=until or None, run=learning
    )


def section(kind, run_of_meter):
    _, bundle, _ = KINDS[kind]
    return {**run_of_meter, "name": f"{kind}s", "cohort": {"kind": kind}, "bundle": bundle}


def town(folder, url):
    """Set up a fleet of three runs as an operator does; return its files and a device of each kind."""
    page, samples = f"127.0.0.1:{free_port()}", sample_set("homes")
    made = prepare(folder / "meter", "town", scenario("meter"), samples, broker=url, page=page)
    table = tomllib.loads(made.aggregator.read_text("utf-8"))
    table["run"] = [section(kind, table["run"]) for kind in KINDS]
    made.aggregator.write_text(toml(table), "utf-8")
    run(command("gridfed-aggregator", "announce", str(made.aggregator)))
    devices = {"meter": made.devices[0]}
    for kind in ("charger", "cell"):
        samples = sample_set(KINDS[kind][0])
        joined = join(folder / kind, made.aggregator, scenario(kind), samples, broker=url)
        devices[kind] = joined.devices[0]
    for kind, device in devices.items():
        words = ("label", f"kind={kind}", device.id, "--config", str(made.aggregator))
        run(command("gridfed-aggregator", *words))
    return made, devices


class Tap:
    """A client that reads every topic of the fleet."""

    def __init__(self, url):
        broker = Broker(url=url, client_id="town.tap", session_expiry=0, max_packet=LARGEST_PACKET)
        self.link = MqttLink(broker)
        self.link.open()
        while not self.link.is_up:
            self.link.poll(0.05)
        self.link.subscribe("gf/1/town/#")
        self.seen = set()

    def read(self):
        for one in self.link.poll(0.0):
            if isinstance(one, Message):
                address = topics.parse(one.topic)
                if one.payload:  # an empty one clears what `init` announced to all
                    self.seen.add((address.id, address.kind))
                self.link.acknowledge(one)


def test_three_kinds_of_devices_learn_in_three_runs_of_one_daemon(tmp_path):
    if mosquitto_program() is None:
        pytest.skip("mosquitto is not installed")
    with ProcessGroup(tmp_path / "logs") as family:
        url = start_broker(family, tmp_path / "broker", "mosquitto")
        made, devices = town(tmp_path, url)
        tap, trial = Tap(url), Trial(family, Federation(made, ROUNDS, family), url)
        trial.run.start_aggregator()
        for device in devices.values():
            trial.run.start_device(device)

        def is_done():
            tap.read()
            runs = trial.status().get("runs", ())
            return len(runs) == 3 and all(one["version"] == ROUNDS for one in runs)

        def have_left():
            tap.read()
            return all(one.poll() is not None for one in trial.run.devices)

        trial.until(is_done)
        trial.until(have_left)
        status, seen = trial.status(), tap.seen
        assert status["refused"] == {}
        assert [one["name"] for one in status["runs"]] == ["meters", "chargers", "cells"]
        assert {one["phase"] for one in status["runs"]} == {"stop"}
        assert {(f"_{kind}s", "model") for kind in KINDS} <= seen
        assert not {kind for name, kind in seen if name == "_all"} & {"bundle", "model", "part"}
        for kind, device in devices.items():
            said = run(command("gridfed-edge", "status", str(device.config), "--json"))
            assert json.loads(said)["bundle"].startswith(KINDS[kind][1].removesuffix("-1"))
            assert {(device.id, "update"), (device.id, "offer")} & seen
        said = run(command("gridfed-aggregator", "audit", str(made.aggregator), "--json"))
        assert json.loads(said)["sound"] is True
        assert [one["moved"] for one in json.loads(said)["audits"]] == [ROUNDS] * 3
        tap.link.close()
