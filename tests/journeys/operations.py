"""An operations engineer: a certificate authority, Mosquitto with TLS, one daemon, meters, and what follows.

    python tests/journeys/operations.py [--dist dist]

Server and devices have environments of their own, from the wheels. The P1 meter is simulated by this
checkout. Not part of it yet: a charger and a base station on the same daemon, the schedule.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from journey import ROOT, Journey, JourneyError, journey

MOSQUITTO = shutil.which("mosquitto") or "/usr/sbin/mosquitto"


def free_port() -> int:
    """Return a port of loopback that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Site:
    """A fleet with its authority, broker, daemon and meters, in one folder."""

    def __init__(self, one: Journey) -> None:
        self.one, self.folder = one, one.folder
        self.server = one.environment("server", "gridfed[aggregator]")
        self.device = one.environment("device", "gridfed")
        self.port, self.page = free_port(), free_port()
        one.step("the wheels are installed: a server's and a device's environment")

    def operate(self, *words: object, code: int = 0) -> str:
        """Run the aggregator's program."""
        return self.one.run(self.server / "gridfed-aggregator", *words, code=code)

    def edge(self, *words: object, code: int = 0) -> str:
        """Run the device's program."""
        return self.one.run(self.device / "gridfed-edge", *words, code=code)

    def link(self, name: str) -> str:
        """Return the [broker] section of a holder of a certificate."""
        issued = self.folder / "ca" / "issued"
        return (
            f'[broker]\nurl = "mqtts://127.0.0.1:{self.port}"\n'
            f'ca_file = "{self.folder}/ca/ca.pem"\ncert_file = "{issued}/{name}.pem"\n'
            f'key_file = "{issued}/{name}.key"\n'
        )

    def set_up_broker(self) -> None:
        """Make the authority, the certificates and the broker's files, and start the broker."""
        self.operate("ca", "init", "ca")
        self.operate(
            *("ca", "issue", "broker", "--role", "broker", "--host", "127.0.0.1"),
            *("--folder", "ca"),
        )
        self.operate("ca", "issue", "_agg", "--role", "aggregator", "--folder", "ca")
        conf = self.operate(
            *("broker", "config", "--fleet", "north", "--port", self.port, "--folder", "broker"),
            *("--ca", "ca/ca.pem", "--cert", "ca/issued/broker.pem"),
            *("--key", "ca/issued/broker.key"),
        )
        (self.folder / "mosquitto.conf").write_text(conf, encoding="utf-8")
        self.one.step("ca init, ca issue, broker config")

    def set_up_aggregator(self) -> None:
        """Write the configuration and begin a run."""
        text = (
            f'fleet = "north"\nstate = "server-state"\n{self.link("_agg")}'
            f'[http]\nlisten = "127.0.0.1:{self.page}"\n'
            '[run]\nbundle = "load-week-1"\nmethod = "fedavg"\nshared = ["body."]\nquorum = 1\n'
            'min_updates = 1\ndeadline = "60s"\nsettings = { steps = 2, rate = 0.001 }\n'
        )
        (self.folder / "aggregator.toml").write_text(text, encoding="utf-8")
        self.operate("init", "aggregator.toml")

    def add_device(self, name: str, source: str) -> None:
        """Issue a certificate, create the device's key and enrol it."""
        self.operate("ca", "issue", name, "--folder", "ca")
        text = (
            f'id = "{name}"\nfleet = "north"\nstate = "{name}-state"\nbundle = "load-week-1"\n'
            f'{self.link(name)}[keys]\ndevice = "{name}.key"\nroot = "server-state/root.pub"\n'
            f'[accept]\nmethods = ["fedavg"]\n[privacy]\nmechanism = {{ name = "none" }}\n{source}'
        )
        (self.folder / f"{name}.toml").write_text(text, encoding="utf-8")
        told = json.loads(self.edge("enrol", f"{name}.toml", "--json"))
        self.operate(
            *("enrol", name, "--public", told["public"], "--proof", told["proof"]),
            *("--config", "aggregator.toml"),
        )
        self.write_access()

    def write_access(self) -> None:
        """Write the broker's rules for the enrolled devices; a running broker reads them again."""
        self.operate(
            "broker", "access", "--file", "broker/access.acl", "--config", "aggregator.toml"
        )

    def status(self) -> dict[str, Any]:
        """Return the daemon's status."""
        found: dict[str, Any] = json.loads(self.operate("status", "aggregator.toml", "--json"))
        return found

    def state_of(self, name: str) -> dict[str, Any]:
        """Return a device's status; empty before its first start."""
        try:
            found: dict[str, Any] = json.loads(self.edge("status", f"{name}.toml", "--json"))
        except JourneyError:
            return {}
        return found


def main() -> None:
    """Run the journey."""
    with journey("an operations engineer") as one:
        if not Path(MOSQUITTO).exists():
            sys.exit("mosquitto is not installed")
        site = Site(one)
        site.set_up_broker()
        site.set_up_aggregator()
        p1 = free_port()
        site.add_device("meter-1", f'[[source]]\ntype = "p1"\nurl = "tcp://127.0.0.1:{p1}"\n')
        broker = one.start(MOSQUITTO, "-c", "mosquitto.conf", log="mosquitto.log")
        daemon = one.start(
            site.server / "gridfed-aggregator", "run", "aggregator.toml", log="aggregator.log"
        )
        one.until("the daemon is linked over TLS", lambda: bool(site.status().get("ready")))
        one.start(
            *(sys.executable, "-m", "firmware_sim", "meter", "--p1", f"tcp://127.0.0.1:{p1}"),
            *("--start", "2026-10-01T00:00:00Z", "--for", "240h", "--every", "15m"),
            *("--speed", "0"),
            log="p1.log", PYTHONPATH=str(ROOT),
        )  # fmt: skip
        first = one.start(site.device / "gridfed-edge", "run", "meter-1.toml", log="meter-1.log")
        one.until("the first round is closed", lambda: site.status()["run"]["version"] >= 1)
        one.stop(
            first
        )  # which writes the newest readings; they are read again after the next start
        told = site.edge("forecast", "meter-1.toml").strip().splitlines()[-1]
        one.succeed(f"a P1 meter took part in a round, and forecasts {told}", minutes=10)
        one.start(site.device / "gridfed-edge", "run", "meter-1.toml", log="meter-1.log")
        life_goes_on(site, one, broker, daemon)


def life_goes_on(site: Site, one: Journey, broker: Any, daemon: Any) -> None:
    """Add a device, revoke it, upgrade a device, back up, restore elsewhere and audit."""
    site.add_device("meter-2", '[[source]]\ntype = "p1"\nurl = "tcp://127.0.0.1:1"\n')
    os.kill(broker.pid, signal.SIGHUP)
    second = one.start(site.device / "gridfed-edge", "run", "meter-2.toml", log="meter-2.log")

    def online(number: int) -> bool:
        return bool(site.status()["devices"].get("online", 0) == number)

    one.until("a second device is online", lambda: online(2))
    listed = site.operate("list", "aggregator.toml")
    one.expect("version 0.1.", listed)
    site.operate("revoke", "meter-2", "--why", "replaced", "--config", "aggregator.toml")
    one.until(
        "the revoked device knows it, and says so",
        lambda: str(site.state_of("meter-2").get("stopped", "")).startswith("REVOKED"),
    )
    one.until("one of one enrolled device is online", lambda: online(1))
    one.expect("is not enrolled", site.operate("command", "meter-9", "report", "--config",
                                               "aggregator.toml", code=1))  # fmt: skip
    site.operate("ca", "revoke", "meter-2", "--folder", "ca")
    site.write_access()
    os.kill(broker.pid, signal.SIGHUP)
    one.stop(second)
    one.run(
        *(site.device / "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"),
        *("--force-reinstall", "--find-links", one.dist, "--no-index", "gridfed"),
    )
    one.step("the device's wheel is installed again beside a running agent, as an upgrade is")
    site.operate("backup", "backup.db", "--config", "aggregator.toml")
    one.stop(daemon)
    one.expect(
        "every round was recomputed to the same bits", site.operate("audit", "aggregator.toml")
    )
    one.step("backed up, stopped, audited")
    elsewhere = one.folder / "elsewhere"
    elsewhere.mkdir()
    text = (one.folder / "aggregator.toml").read_text("utf-8")
    (elsewhere / "aggregator.toml").write_text(text, encoding="utf-8")
    shutil.copytree(one.folder / "server-state", elsewhere / "server-state",
                    ignore=shutil.ignore_patterns("*.db*", "inbox"))  # fmt: skip
    config = elsewhere / "aggregator.toml"
    before = re.findall(r"run (\d+):", site.operate("audit", "aggregator.toml"))[0]
    site.operate("restore", "backup.db", "--config", config)
    one.start(site.server / "gridfed-aggregator", "run", config, log="elsewhere.log")
    one.until(
        "restored elsewhere: the device takes part in a new run",
        lambda: site.status()["run"]["run"] > int(before) and site.status()["run"]["version"] >= 1,
    )
    one.expect("every round was recomputed to the same bits", site.operate("audit", config))
    one.step("audited there, too")


if __name__ == "__main__":
    main()
