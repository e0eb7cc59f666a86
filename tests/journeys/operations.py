"""An operations engineer: certificates, Mosquitto with TLS, a meter, a charger and a base station on one daemon.

    python tests/journeys/operations.py [--dist dist]

Server, devices and the charger's back office have environments of their own, the first two from the
wheels. Meter, charger and base station are simulated by this checkout. Three runs follow a schedule of
one round a day; the daemon's clock is moved to the next midnight instead of waiting for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from journey import ROOT, Journey, JourneyError, journey

DAY = 86_400
KINDS = {
    "meters": ("meter", "load-week-1@live", '["body."]'),
    "chargers": ("charger", "chargers-1", "[]"),
    "sites": ("site", "cells-mlp-1", "[]"),
}
"""Label, bundle and shared layers of the devices of each run; no layers means all."""
DAEMON = """
import sys
from pathlib import Path
from aggregator.config import AggregatorConfig
from aggregator.daemon import Daemon
from edge_sdk.app.cli import start_logging, stop_signals
from edge_sdk.app.clock import SystemClock

class MovedClock(SystemClock):
    def wall(self):
        return super().wall() + int(Path(sys.argv[2]).read_text())

start_logging("info")
config = AggregatorConfig.load(sys.argv[1])
with stop_signals() as stopping, Daemon(config, clock=MovedClock()) as daemon:
    daemon.run(stopping)
"""
"""The daemon as `gridfed-aggregator run` starts it, with a clock that a file of milliseconds moves."""
SECOND_VERSION = """
import shutil, sys
from dataclasses import replace
from pathlib import Path
import edge_sdk
from edge_sdk.protocol.contract.archive import MANIFEST, SIGNATURE, seal
from edge_sdk.protocol.contract.manifest import Manifest
from edge_sdk.protocol.keys import load_signing_key

shipped = Path(edge_sdk.__file__).parent / "bundles" / "load-week-1"
folder = Path(shutil.copytree(shipped, sys.argv[1]))
manifest = Manifest.parse((folder / MANIFEST).read_bytes())
raw = replace(manifest, version=manifest.version + 1).canonical()
(folder / MANIFEST).write_bytes(raw)
(folder / SIGNATURE).write_bytes(seal(load_signing_key(Path(sys.argv[2])), raw))
"""
"""A bundle's second version, as `export` with torch would write it."""
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
        self.noon = (DAY / 2 - time.time()) % DAY  # no journey lasts from noon to midnight
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
            *("--address", "127.0.0.1"),
            *("--ca", "ca/ca.pem", "--cert", "ca/issued/broker.pem"),
            *("--key", "ca/issued/broker.key"),
        )
        (self.folder / "mosquitto.conf").write_text(conf, encoding="utf-8")
        self.one.step("ca init, ca issue, broker config")

    def set_up_aggregator(self) -> None:
        """Write the configuration of three runs and begin them."""
        text = (
            f'fleet = "north"\nstate = "server-state"\n{self.link("_agg")}'
            f'[http]\nlisten = "127.0.0.1:{self.page}"\n'
        )
        for name, (kind, bundle, shared) in KINDS.items():
            text += (
                f'[[run]]\nname = "{name}"\ncohort = {{ kind = "{kind}" }}\nbundle = "{bundle}"\n'
                'method = "fedavg"\nquorum = 1\nmin_updates = 1\ndeadline = "60s"\n'
                "settings = { steps = 2, rate = 0.001 }\n"
            ) + (f"shared = {shared}\n" if shared != "[]" else "")
        (self.folder / "aggregator.toml").write_text(text, encoding="utf-8")
        self.move_clock(self.noon)
        self.operate("bundle", "promote", "load-week-1", "--config", "aggregator.toml")
        self.operate("init", "aggregator.toml")

    def move_clock(self, seconds: float) -> None:
        """Move the daemon's clock so many seconds ahead of this machine's."""
        beside = self.folder / "clock.part"
        beside.write_text(str(int(1000 * seconds)), encoding="utf-8")
        beside.replace(self.folder / "clock")

    def start_daemon(self, config: object = "aggregator.toml", log: str = "aggregator.log") -> Any:
        """Start the daemon."""
        words = (self.server / "python", "-c", DAEMON, config, self.folder / "clock")
        return self.one.start(*words, log=log)

    def add_device(self, name: str, run: str, source: str) -> None:
        """Issue a certificate, create the device's key and enrol it with the label of its run."""
        kind, bundle, _ = KINDS[run]
        self.operate("ca", "issue", name, "--folder", "ca")
        text = (
            f'id = "{name}"\nfleet = "north"\nstate = "{name}-state"\n'
            f'bundle = "{bundle.partition("@")[0]}"\n'
            f'{self.link(name)}[keys]\ndevice = "{name}.key"\nroot = "server-state/root.pub"\n'
            f'[accept]\nmethods = ["fedavg"]\n[privacy]\nmechanism = {{ name = "none" }}\n{source}'
        )
        (self.folder / f"{name}.toml").write_text(text, encoding="utf-8")
        told = json.loads(self.edge("enrol", f"{name}.toml", "--json"))
        self.operate(
            *("enrol", name, "--public", told["public"], "--proof", told["proof"]),
            *("--label", f"kind={kind}", "--config", "aggregator.toml"),
        )
        self.one.until(
            f"{name} is enrolled", lambda: name in self.operate("list", "aggregator.toml")
        )
        self.write_access()

    def simulate(self, *words: object, log: str) -> Any:
        """Start a simulated meter, charger or base station."""
        line = (sys.executable, "-m", "firmware_sim", *words, "--speed", "0")
        return self.one.start(*line, log=log, PYTHONPATH=str(ROOT))

    def write_access(self) -> None:
        """Write the broker's rules for the enrolled devices; a running broker reads them again."""
        self.operate(
            "broker", "access", "--file", "broker/access.acl", "--config", "aggregator.toml"
        )

    def status(self) -> dict[str, Any]:
        """Return the daemon's status."""
        found: dict[str, Any] = json.loads(self.operate("status", "aggregator.toml", "--json"))
        return found

    def runs(self) -> dict[str, dict[str, Any]]:
        """Return the status of each run, by its name."""
        return {one["name"]: one for one in self.status().get("runs", ())}

    def versions(self) -> dict[str, int]:
        """Return the version of each run's model."""
        return {name: int(one["version"]) for name, one in self.runs().items()}

    def state_of(self, name: str) -> dict[str, Any]:
        """Return a device's status; empty before its first start."""
        try:
            found: dict[str, Any] = json.loads(self.edge("status", f"{name}.toml", "--json"))
        except JourneyError:
            return {}
        return found


def iso(moment: float) -> str:
    """Return a moment as ISO text."""
    return datetime.fromtimestamp(moment, UTC).isoformat()


def add_devices(site: Site, one: Journey, office: Path) -> list[Any]:
    """Add a P1 meter, an OCPP charger behind the proxy, and a base station; return their agents."""
    begin = int(time.time()) // DAY * DAY - 9 * DAY
    span = ("--start", iso(begin), "--for", "9d")
    p1, proxy, back = free_port(), free_port(), free_port()
    site.add_device("meter-1", "meters", f'[[source]]\ntype = "p1"\nurl = "tcp://127.0.0.1:{p1}"\n')
    source = (
        f'[[source]]\ntype = "ocpp"\nspool = "ocpp"\nlisten = "tcp://127.0.0.1:{proxy}"\n'
        f'csms = "ws://127.0.0.1:{back}/ocpp"\n'
    )
    site.add_device("charger-1", "chargers", source)
    source = (
        '[[source]]\ntype = "pm3gpp"\nfolder = "pm"\nobjects = "*NRCellDU=*"\n'
        'poll_interval = "1s"\nmax_age = "30d"\n[source.map]\n"DRB.PdcpSduVolumeDL" = '
        '{ stream = "cell.internet.activity", kind = "interval", unit = "1" }\n'
    )
    site.add_device("site-1", "sites", source)
    site.simulate("station", "pm", *span, "--every", "1h", "--cells", "1", log="station.log")
    words = (
        office / "python",
        ROOT / "tests" / "firmware_sim" / "backoffice.py",
        back,
        "1.6",
        "o.jsonl",
    )
    one.start(*words, log="office.log")
    one.start(site.device / "gridfed-edge", "tap", "charger-1.toml", log="tap.log")
    one.until("back office and proxy listen", lambda: all(map(listens, (back, proxy))))
    url = f"ws://127.0.0.1:{proxy}/CP-1"
    charger = site.simulate("charger", url, *span, "--every", "30m", log="charger.log")
    site.simulate("meter", "--p1", f"tcp://127.0.0.1:{p1}", *span, "--every", "15m", log="p1.log")
    one.until("the charger has delivered nine days", lambda: charger.poll() is not None)
    names = ("meter-1", "charger-1", "site-1")
    return [start_agent(site, one, name) for name in names]


def start_agent(site: Site, one: Journey, name: str) -> Any:
    """Start the agent of a device."""
    return one.start(site.device / "gridfed-edge", "run", f"{name}.toml", log=f"{name}.log")


def listens(port: int) -> bool:
    """Return whether a program listens on a port of loopback."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


def main() -> None:
    """Run the journey."""
    with journey("an operations engineer") as one:
        if not Path(MOSQUITTO).exists():
            sys.exit("mosquitto is not installed")
        site, office = Site(one), one.environment("office", "ocpp", "websockets")
        site.set_up_broker()
        site.set_up_aggregator()
        broker = one.start(MOSQUITTO, "-c", "mosquitto.conf", log="mosquitto.log")
        agents = add_devices(site, one, office)
        os.kill(broker.pid, signal.SIGHUP)
        daemon = site.start_daemon()
        one.until("the daemon is linked over TLS", lambda: bool(site.status().get("ready")))
        one.until(
            "the first round of each of three runs is closed",
            lambda: len(site.versions()) == 3 and min(site.versions().values()) >= 1,
        )
        one.stop(agents.pop(0))  # which writes the newest readings; a meter replays them again
        told = site.edge("forecast", "meter-1.toml").strip().splitlines()[-1]
        one.succeed(f"a P1 meter took part in a round, and forecasts {told}", minutes=10)
        agents.insert(0, start_agent(site, one, "meter-1"))
        schedule(site, one)
        revoke_a_fourth_device(site, one, broker)
        daemon = upgrade_and_roll_back(site, one, daemon)
        restore_elsewhere(site, one, daemon)


def schedule(site: Site, one: Journey) -> None:
    """Pass the next midnight: one more round of every run begins, and no more than one."""
    before = site.versions()
    starts = {one["schedule"].get("next round") for one in site.runs().values()}
    if len(starts) != 1 or None in starts:
        raise JourneyError(f"expected one start of the next rounds, at midnight: {starts}")
    one.step(f"each run waits for its next round: {starts.pop()}")
    site.move_clock(site.noon + DAY / 2)
    one.until(
        "midnight has passed, and each run has closed the round of the day",
        lambda: site.versions() == {name: version + 1 for name, version in before.items()},
    )


def revoke_a_fourth_device(site: Site, one: Journey, broker: Any) -> None:
    """Add a second meter to the running fleet, and revoke it."""
    site.add_device("meter-2", "meters", '[[source]]\ntype = "p1"\nurl = "tcp://127.0.0.1:1"\n')
    os.kill(broker.pid, signal.SIGHUP)
    fourth = start_agent(site, one, "meter-2")

    def online(number: int) -> bool:
        return bool(site.status()["devices"].get("online", 0) == number)

    one.until("a fourth device is online", lambda: online(4))
    listed = site.operate("list", "aggregator.toml", "--label", "kind=meter")
    one.expect("version 0.1.", listed)
    site.operate("revoke", "meter-2", "--why", "replaced", "--config", "aggregator.toml")
    one.until(
        "the revoked device knows it, and says so",
        lambda: str(site.state_of("meter-2").get("stopped", "")).startswith("REVOKED"),
    )
    one.until("three of three enrolled devices are online", lambda: online(3))
    one.expect("is not enrolled", site.operate("command", "meter-9", "report", "--config",
                                               "aggregator.toml", code=1))  # fmt: skip
    site.operate("ca", "revoke", "meter-2", "--folder", "ca")
    site.write_access()
    os.kill(broker.pid, signal.SIGHUP)
    one.stop(fourth)


def upgrade_and_roll_back(site: Site, one: Journey, daemon: Any) -> Any:
    """Upgrade the device's software and the meters' bundle, and roll the bundle back."""
    one.run(
        *(site.device / "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"),
        *("--force-reinstall", "--find-links", one.dist, "--no-index", "gridfed"),
    )
    one.step("the device's wheel is installed again beside running agents, as an upgrade is")
    root = "server-state/root.key"
    one.run(site.server / "python", "-c", SECOND_VERSION, "load-week-1-2", root)
    others = {name: run["run"] for name, run in site.runs().items() if name != "meters"}
    steps = {
        "the meters have version 2 of their bundle": ("promote", "load-week-1-2"),
        "rolled back: the meters have the content of version 1": (
            *("rollback", "load-week-1", "--to", "1"),
        ),
    }
    for what, words in steps.items():
        number = site.runs()["meters"]["run"]
        one.stop(daemon)
        site.operate("bundle", *words, "--config", "aggregator.toml")
        one.expect("fetch bundle load-week-1 version", site.operate("announce", "aggregator.toml"))
        daemon = site.start_daemon()

        def has_trained(before: int = number) -> bool:
            meters = site.runs().get("meters", {"run": 0, "version": 0})
            return bool(meters["run"] > before and meters["version"] >= 1)

        one.until(f"{what}, and train", has_trained)
    same = {name: run["run"] for name, run in site.runs().items() if name != "meters"}
    if same != others:
        raise JourneyError(f"the other runs did not continue: {others}, then {same}")
    return daemon


def restore_elsewhere(site: Site, one: Journey, daemon: Any) -> None:
    """Back up, audit, restore in another folder and audit there."""
    sound = "every round was recomputed to the same bits"
    site.operate("backup", "backup.db", "--config", "aggregator.toml")
    one.stop(daemon)
    audited = json.loads(site.operate("audit", "aggregator.toml", "--all", "--json"))
    one.expect("True", str(audited["sound"]))
    listed = site.operate("list", "aggregator.toml")
    one.expect("seen 20", listed)  # the daemon is stopped: from the database
    one.step(f"backed up, stopped, audited: {len(audited['audits'])} runs recomputed")
    elsewhere = one.folder / "elsewhere"
    elsewhere.mkdir()
    text = (one.folder / "aggregator.toml").read_text("utf-8")
    (elsewhere / "aggregator.toml").write_text(text, encoding="utf-8")
    shutil.copytree(one.folder / "server-state", elsewhere / "server-state",
                    ignore=shutil.ignore_patterns("*.db*", "inbox"))  # fmt: skip
    config = elsewhere / "aggregator.toml"
    before = max(int(audit["run"]) for audit in audited["audits"])
    site.operate("restore", "backup.db", "--config", config)
    site.start_daemon(config, "elsewhere.log")
    one.until(
        "restored elsewhere: the devices take part in new runs",
        lambda: (
            len(site.runs()) == 3
            and all(run["run"] > before and run["version"] >= 1 for run in site.runs().values())
        ),
    )
    one.expect(sound, site.operate("audit", config))
    one.step("audited there, too")


if __name__ == "__main__":
    main()
