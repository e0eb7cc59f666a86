"""Whole federations of real programs, once for every way a fleet is connected and used."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from aggregator.extensions.authority.access.broker_process import has_embedded, mosquitto_program
from edge_sdk.protocol.contract.archive import MANIFEST, SIGNATURE, seal
from edge_sdk.protocol.contract.manifest import Manifest
from edge_sdk.protocol.keys import load_signing_key
from firmware_sim.fleet.federation import Federation, fetched, free_port, start_broker
from firmware_sim.fleet.processes import (
    ProcessGroup,
    ProgramRefused,
    RunningProgram,
    command,
    run,
)
from firmware_sim.fleet.run_files import prepare, toml
from firmware_sim.samples import sample_set
from firmware_sim.scenario import RunSettings, Scenario
from tests.broker.authority import Authority

pytestmark = [pytest.mark.broker]

FLEET = "trial"
PATIENCE = 600.0
SHORT = Scenario(
    "a short run",
    samples="homes",
    devices=2,
    bundle="load-mlp",
    run=RunSettings("fedavg", None, 3, {"steps": 2}, deadline="1h"),
    until="2018-02-01",
)
ENDLESS = replace(SHORT, run=replace(SHORT.run, rounds=100_000))
SHIPPED = Path(__file__).parents[2] / "edge_sdk" / "bundles"


@dataclass
class Trial:
    """One federation in a folder: its programs, and what they say of themselves."""

    family: ProcessGroup
    run: Federation
    url: str

    @property
    def config(self) -> Path:
        return self.run.prepared.aggregator

    def status(self) -> dict[str, Any]:
        """What the aggregator's page says, once it says anything of a run."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            said: dict[str, Any] = json.loads(fetched(self.run.prepared.page, "/status") or "{}")
            if "run" in said:
                return said
            time.sleep(0.1)
        pytest.fail("the aggregator's page does not tell of its run")

    def messages(self, kind: str) -> int:
        """How many messages of a kind the aggregator has received."""
        text = fetched(self.run.prepared.page, "/metrics") or ""
        found = re.search(rf'gridfed_messages_total{{kind="{kind}"}} (\S+)', text)
        return int(float(found[1])) if found else 0

    def device(self, number: int = 0) -> dict[str, Any]:
        """What a device's own status command says."""
        config = str(self.run.prepared.devices[number].config)
        said: dict[str, Any] = json.loads(run(command("gridfed-edge", "status", config, "--json")))
        return said

    def say(self, *words: str) -> str:
        return run(command("gridfed-aggregator", *words, "--config", str(self.config)))

    def until(self, done: Callable[[], object], limit: float = PATIENCE) -> None:
        end = time.monotonic() + limit
        while not done():
            self.family.require_running()
            if time.monotonic() > end:
                logs = "\n".join(f"{one.name}:\n{one.tail(8)}" for one in self.family.members)
                pytest.fail(f"not within {limit:.0f} s\n{self.status()}\n{logs}")
            time.sleep(0.1)

    def finish(self) -> None:
        """Run to the last round, and wait until every device has left with the final model."""
        for _ in self.run.watch(PATIENCE):
            pass
        self.until(lambda: all(one.poll() is not None for one in self.run.devices))
        assert [one.code for one in self.run.devices] == [0] * len(self.run.devices)

    def restart_aggregator(self, **changes: object) -> None:
        """Stop it, change ``[run]``, announce what changed, and start it again."""
        self.family.stop([self.run.aggregator])
        self.family.members.remove(self.run.aggregator)
        rewrite(self.config, "run", **changes)
        run(command("gridfed-aggregator", "announce", str(self.config)))
        self.run.start_aggregator()

    def settled(self, seconds: float = 2.0) -> int:
        """The model's version, once it has not moved for a while."""
        before, since = -1, time.monotonic()
        while time.monotonic() - since < seconds:
            version = self.status()["run"]["version"]
            if version != before:
                before, since = version, time.monotonic()
            time.sleep(0.1)
        return before


def rewrite(path: Path, key: str, **changes: object) -> None:
    """Change one table of a configuration that the simulator wrote: a line a key."""
    import tomllib  # noqa: PLC0415 - only here

    table = tomllib.loads(path.read_text("utf-8"))
    table[key] = {**table[key], **changes}
    path.write_text(toml(table), "utf-8")


def files(folder: Path, chosen: Scenario, url: str):
    page = f"127.0.0.1:{free_port()}"
    samples = sample_set(chosen.samples)
    return prepare(folder / "fleet", FLEET, chosen, samples, broker=url, page=page)


@pytest.fixture
def begin(tmp_path):
    """Prepare a fleet on a broker, and start all of it unless told otherwise."""
    with ProcessGroup(tmp_path / "logs") as family:

        def make(
            chosen: Scenario = SHORT,
            kind: str = "embedded",
            *,
            is_started: bool = True,
            **link: object,
        ) -> Trial:
            if kind == "embedded" and not has_embedded():
                pytest.skip("the embedded broker (iotcore) is not installed")
            if kind == "mosquitto" and mosquitto_program() is None:
                pytest.skip("mosquitto is not installed")
            url = start_broker(family, tmp_path / "broker", kind)
            if link.get("protocol") == 4 and kind == "embedded":
                url = f"mqtt://127.0.0.1:{int(url.rsplit(':', 1)[1]) + 1}"
            prepared = files(tmp_path, chosen, url)
            for path in (prepared.aggregator, *(one.config for one in prepared.devices)):
                rewrite(path, "broker", **link)
            trial = Trial(family, Federation(prepared, chosen.run.rounds, family), url)
            if is_started:
                trial.run.start_aggregator()
                trial.run.start_devices()
            return trial

        yield make


# --- how a fleet is connected ---------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["embedded", "mosquitto"])
def test_the_profile_of_mqtt_3_1_1_is_enough(begin, kind):
    trial = begin(kind=kind, protocol=4)
    trial.finish()
    assert trial.status()["refused"] == {}
    assert trial.device()["version"] == 3


@dataclass
class Secured:
    """Mosquitto with client certificates and access rules, as our own command configures it."""

    folder: Path
    authority: Authority
    port: int

    def start(self, family: ProcessGroup) -> RunningProgram:
        certificate, key = self.authority.issue("broker", "127.0.0.1")
        options = {
            "--port": self.port,
            "--address": "127.0.0.1",
            "--folder": self.folder,
            "--fleet": FLEET,
            "--ca": self.authority.file,
            "--cert": certificate,
            "--key": key,
        }
        words = [str(word) for pair in options.items() for word in pair]
        written = run(command("gridfed-aggregator", "broker", "config", *words))
        path = self.folder / "mosquitto.conf"
        path.write_text(written, "utf-8")
        assert run(command("gridfed-aggregator", "broker", "check", "--file", str(path)))
        return family.start("mosquitto", [str(mosquitto_program()), "-c", str(path)])

    def link(self, name: str) -> dict[str, object]:
        certificate, key = self.authority.issue(name)
        return {
            "url": f"mqtts://127.0.0.1:{self.port}",
            "ca_file": self.authority.file,
            "cert_file": certificate,
            "key_file": key,
        }


def check_broker(config: Path) -> tuple[int, str]:
    done = subprocess.run(
        command("gridfed-edge", "check", str(config), "--broker"),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "Traceback" not in done.stderr
    found = [line for line in done.stdout.splitlines() if line.startswith("broker: ")]
    return done.returncode, found[-1] if found else done.stdout


@pytest.mark.slow
def test_with_certificates_and_access_rules(tmp_path):
    if mosquitto_program() is None:
        pytest.skip("mosquitto is not installed")
    (tmp_path / "certificates").mkdir()
    site = Secured(
        tmp_path / "broker", Authority(tmp_path / "certificates", "authority"), free_port()
    )
    with ProcessGroup(tmp_path / "logs") as family:
        site.start(family)
        prepared = files(tmp_path, SHORT, "mqtt://127.0.0.1:1")
        rewrite(prepared.aggregator, "broker", **site.link("_agg"))
        for device in prepared.devices:
            rewrite(device.config, "broker", **site.link(device.id))
        trial = Trial(family, Federation(prepared, 3, family), "")
        trial.run.start_aggregator()
        assert check_broker(prepared.devices[0].config) == (0, "broker: reached")
        trial.run.start_devices()
        trial.finish()
        assert trial.status()["refused"] == {}

        stranger = prepared.devices[1].config
        rewrite(stranger, "broker", cert_file=None, key_file=None)
        code, said = check_broker(stranger)
        assert code == 75
        assert said.startswith("broker: not reached: ")
        assert "certificate" in said.lower()

        (tmp_path / "others").mkdir()
        other = Authority(tmp_path / "others", "other")
        certificate, key = other.issue(prepared.devices[1].id)
        rewrite(stranger, "broker", cert_file=certificate, key_file=key)
        code, said = check_broker(stranger)
        assert code == 75
        assert "certificate" in said.lower()

        link = site.link(prepared.devices[1].id) | {"ca_file": other.file}
        rewrite(stranger, "broker", **link)
        code, said = check_broker(stranger)
        assert code == 75
        assert "certificate" in said.lower()


# --- what a fleet learns --------------------------------------------------------------------------


@pytest.mark.slow
def test_configuration_3_shares_no_layer_and_trains_locally(begin):
    chosen = replace(SHORT, run=replace(SHORT.run, shared=()))
    trial = begin(chosen)
    logs = [one.log for one in trial.run.devices]
    trial.until(lambda: all(log.read_text().count("round trained") >= 3 for log in logs))
    assert trial.messages("update") == trial.messages("offer") == 0
    assert trial.messages("hello") >= 2
    assert trial.status()["run"]["version"] == 0
    assert trial.device()["spent"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mosquitto", "embedded"])
def test_a_large_update_goes_in_one_message_where_the_broker_takes_it_else_in_chunks(begin, kind):
    chosen = replace(SHORT, bundle="load-lstm-week", run=replace(SHORT.run, shared=("",), rounds=2))
    trial = begin(chosen, kind=kind)
    trial.finish()
    if kind == "mosquitto":  # it states its largest packet, as written by `broker config`
        assert trial.messages("update") >= 2 * 2
        assert trial.messages("chunk") == 0
    else:
        assert trial.messages("update") == 0
        assert trial.messages("offer") >= 2 * 2
        assert trial.messages("chunk") >= 2 * 2 * 6  # 168,724 bytes of scalars in pieces of 32 KiB
    assert trial.status()["refused"] == {}


# --- what an operator says ------------------------------------------------------------------------


@pytest.mark.slow
def test_one_device_or_the_fleet_can_be_paused_and_resumed(begin):
    trial = begin(ENDLESS)
    trial.until(lambda: trial.status()["run"]["version"] >= 1)
    first = trial.run.prepared.devices[0].id

    trial.say("command", first, "stop")
    trial.until(lambda: trial.device()["stopped"])
    still = trial.settled()
    assert not trial.device(1)["stopped"]
    trial.say("command", first, "resume")
    trial.until(lambda: trial.status()["run"]["version"] > still)
    assert not trial.device()["stopped"]

    run(command("gridfed-aggregator", "pause", str(trial.config)))
    trial.until(lambda: trial.status()["run"]["phase"] == "pause")
    still = trial.settled()
    run(command("gridfed-aggregator", "resume", str(trial.config)))
    trial.until(lambda: trial.status()["run"]["version"] > still)
    assert trial.status()["run"]["phase"] == "train"
    assert trial.status()["refused"].keys() <= {"PAUSED", "EXPIRED"}  # a grant, on a busy machine


# --- what an operator hands out -------------------------------------------------------------------


def release(folder: Path, version: int, root: Path) -> Path:
    """Sign a copy of a shipped bundle anew, as another version of it."""
    shutil.copytree(SHIPPED / "load-mlp", folder)
    manifest = Manifest.parse((folder / MANIFEST).read_bytes())
    raw = replace(manifest, version=version).canonical()
    (folder / MANIFEST).write_bytes(raw)
    (folder / SIGNATURE).write_bytes(seal(load_signing_key(root), raw))
    return folder


def installed(trial: Trial, number: int) -> list[int]:
    """The versions of all bundles that a device has installed from its fleet."""
    device = trial.run.prepared.devices[number]
    found = device.config.parent.glob(f"{device.id}/bundle/[!.]*/{MANIFEST}")
    return sorted(Manifest.parse(path.read_bytes()).version for path in found)


@pytest.mark.slow
def test_a_new_bundle_reaches_running_devices(begin, tmp_path):
    trial = begin(ENDLESS, kind="mosquitto")
    trial.until(lambda: trial.status()["run"]["version"] >= 1)
    root = trial.config.parent / "aggregator" / "root.key"

    trial.restart_aggregator(bundle=str(release(tmp_path / "second", 2, root)))
    trial.until(lambda: installed(trial, 0) == installed(trial, 1) == [2])
    trial.until(lambda: trial.status()["run"]["version"] >= 2)
    assert trial.status()["run"]["run"] == trial.device()["run"] == 2
    assert trial.messages("have") >= 2

    with pytest.raises(ProgramRefused, match="version 1: devices have version 2 and refuse"):
        trial.restart_aggregator(bundle="load-mlp")  # version 1 again, properly signed
    assert [trial.device(n)["run"] for n in range(2)] == [2, 2]
    assert installed(trial, 0) == [2]


@pytest.mark.slow
def test_an_archive_that_was_tampered_with_is_not_installed(begin, tmp_path):
    trial = begin(ENDLESS)
    trial.until(lambda: trial.status()["run"]["version"] >= 1)
    root = trial.config.parent / "aggregator" / "root.key"
    trial.family.stop([trial.run.aggregator])
    trial.family.members.remove(trial.run.aggregator)
    rewrite(trial.config, "run", bundle=str(release(tmp_path / "second", 2, root)))
    run(command("gridfed-aggregator", "announce", str(trial.config)))
    spoil(trial.config.parent / "aggregator" / "aggregator.db")

    begun = time.monotonic()
    trial.run.start_aggregator()
    trial.until(lambda: trial.messages("have") >= 2)
    assert trial.settled(4.0) == 0
    assert installed(trial, 0) == installed(trial, 1) == []
    assert [trial.device(n)["run"] for n in range(2)] == [1, 1]
    seconds = time.monotonic() - begun
    assert trial.messages("have") <= 10 * seconds  # it is asked for again, and not without pause


def spoil(database: Path) -> None:
    """Change one byte of every archive that is kept to be handed out."""
    with closing(sqlite3.connect(database)) as db, db:
        rows = db.execute("SELECT id, body FROM contents WHERE kind = 'bundle'").fetchall()
        for name, body in rows:
            changed = body[:20_000] + bytes([body[20_000] ^ 1]) + body[20_001:]
            db.execute("UPDATE contents SET body = ? WHERE id = ?", (changed, name))
        assert rows


# --- backup while running, and back -----------------------------------------------------------


@pytest.mark.slow
def test_a_fleet_continues_from_a_backup_taken_while_it_ran(begin, tmp_path):
    """The database is lost to a ``kill -9`` and a broken disk; the devices notice another run."""
    trial = begin(ENDLESS)
    trial.until(lambda: trial.status()["run"]["version"] >= 2)
    copy, state = tmp_path / "fleet.db", trial.config.parent / "aggregator"
    trial.say("backup", str(copy))
    at = trial.status()["run"]
    trial.until(lambda: trial.status()["run"]["version"] >= at["version"] + 2)
    trial.run.aggregator.signal(signal.SIGKILL)
    trial.run.aggregator.wait(10.0)
    trial.family.members.remove(trial.run.aggregator)
    for path in state.glob("aggregator.db*"):
        path.unlink()
    trial.say("restore", str(copy))
    trial.run.start_aggregator()
    begun = trial.status()["run"]
    assert begun["run"] > at["run"]
    trial.until(lambda: trial.status()["run"]["version"] >= begun["version"] + 2)
    trial.run.stop()
    said = run(command("gridfed-aggregator", "audit", str(trial.config)))
    assert "every round was recomputed to the same bits" in said
