"""Two fleets with equal device ids, one authority and one Mosquitto, set up by our own commands."""

from __future__ import annotations

import time

import pytest

from aggregator.extensions.authority.access.broker_process import mosquitto_program
from aggregator.extensions.authority.access.mosquitto_acl import findings, read
from edge_sdk.link.mqtt import Broker, MqttLink
from edge_sdk.link.tls_files import client_id_of
from edge_sdk.link.transport import Message
from firmware_sim.fleet.federation import Federation, free_port
from firmware_sim.fleet.processes import ProcessGroup, command, run
from firmware_sim.fleet.run_files import prepare
from firmware_sim.samples import sample_set
from tests.broker.test_federation import SHORT, Trial, rewrite

pytestmark = pytest.mark.broker

FLEETS = ("north", "south")


def aggregator(*words: object) -> str:
    return run(command("gridfed-aggregator", *(str(word) for word in words)))


@pytest.fixture
def street(tmp_path):
    if mosquitto_program() is None:
        pytest.skip("mosquitto is not installed")
    with ProcessGroup(tmp_path / "logs") as family:
        yield Street(tmp_path, family)


class Street:
    """A broker that two fleets share; each has devices of the same names."""

    def __init__(self, folder, family):
        self.folder, self.family, self.port = folder, family, free_port()
        self.ca, self.access = folder / "ca", folder / "broker" / "access.acl"
        aggregator("ca", "init", self.ca)
        aggregator(
            *("ca", "issue", "broker", "--role", "broker", "--host", "127.0.0.1"),
            *("--folder", self.ca),
        )
        self.trials = {fleet: self.trial(fleet) for fleet in FLEETS}
        for fleet in FLEETS:
            file = self.trials[fleet].config
            aggregator("broker", "access", "--shared", "--file", self.access, "--config", file)
        self.broker = family.start("mosquitto", [str(mosquitto_program()), "-c", str(self.conf)])

    @property
    def conf(self):
        return self.folder / "mosquitto.conf"

    def trial(self, fleet):
        issued = self.ca / "issued"
        self.conf.write_text(
            aggregator(
                *("broker", "config", "--shared", "--fleet", fleet, "--port", self.port),
                *("--address", "127.0.0.1"),
                *("--folder", self.folder / "broker", "--ca", self.ca / "ca.pem"),
                *("--cert", issued / "broker.pem", "--key", issued / "broker.key"),
            )
        )
        page, samples = f"127.0.0.1:{free_port()}", sample_set(SHORT.samples)
        made = prepare(
            self.folder / fleet, fleet, SHORT, samples, broker="mqtt://127.0.0.1:1", page=page
        )
        aggregator(
            *("ca", "issue", "_agg", "--role", "aggregator", "--fleet", fleet),
            *("--folder", self.ca),
        )
        rewrite(made.aggregator, "broker", **self.link(fleet, "_agg"))
        for device in made.devices:
            aggregator("ca", "issue", device.id, "--fleet", fleet, "--folder", self.ca)
            rewrite(device.config, "broker", **self.link(fleet, device.id))
        return Trial(self.family, Federation(made, 3, self.family), "")

    def link(self, fleet, name):
        file = self.ca / "issued" / f"{fleet}.{name}"
        return {
            "url": f"mqtts://127.0.0.1:{self.port}",
            "ca_file": self.ca / "ca.pem",
            "cert_file": file.with_name(f"{file.name}.pem"),
            "key_file": file.with_name(f"{file.name}.key"),
        }

    def tap(self, fleet, name):
        """A client that follows no rule of ours, with the certificate of a device."""
        link = self.link(fleet, name)
        options = Broker(
            client_id=client_id_of(fleet, name, link["cert_file"]), session_expiry=0, **link
        )
        tapped = MqttLink(options)
        tapped.open()
        end = time.monotonic() + 60
        while not tapped.is_up:
            assert time.monotonic() < end
            tapped.poll(0.05)
        return tapped


@pytest.mark.slow
def test_two_fleets_share_a_broker_without_seeing_each_other(street):
    north, south = (street.trials[fleet] for fleet in FLEETS)
    names = [device.id for device in north.run.prepared.devices]
    assert names == [device.id for device in south.run.prepared.devices]
    assert findings(street.access.read_text()) == []

    tapped = street.tap("south", names[0])  # before the devices: it would take their session
    tapped.subscribe("gf/1/north/#", f"gf/1/north/{names[0]}/down/#", "gf/1/north/_all/#")
    north.run.start_aggregator()
    north.run.start_devices()
    north.finish()
    heard = [one for _ in range(20) for one in tapped.poll(0.05) if isinstance(one, Message)]
    assert heard == []
    tapped.close()

    south.run.start_aggregator()
    south.run.start_devices()
    south.finish()
    for trial in (north, south):
        assert trial.status()["refused"] == {}
        assert trial.status()["run"]["version"] == 3
        assert trial.status()["devices"]["enrolled"] == 2


@pytest.mark.slow
def test_a_fleet_replaces_its_own_rules_and_no_others(street):
    before = street.access.read_text()
    north = street.trials["north"]
    gone, stays = (device.id for device in north.run.prepared.devices)
    aggregator("revoke", gone, "--config", north.config)
    aggregator("broker", "access", "--shared", "--file", street.access, "--config", north.config)
    after = street.access.read_text()
    assert after.partition("# begin fleet south")[2] == before.partition("# begin fleet south")[2]
    rules = read(after)
    assert not rules.may(f"north.{gone}", f"gf/1/north/{gone}/up/hello", write=True)
    assert rules.may(f"north.{stays}", f"gf/1/north/{stays}/up/hello", write=True)
    assert rules.may(f"south.{gone}", f"gf/1/south/{gone}/up/hello", write=True)
    assert not rules.may(gone, f"gf/1/south/{gone}/up/hello", write=True)
