"""examples/device/device.c, written from PROTOCOL.md alone, against the real daemon and broker."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aggregator.config import AggregatorConfig
from aggregator.extensions.authority.access.broker_process import has_embedded, mosquitto_program
from aggregator.extensions.sums.opened_sum import SumTable
from aggregator.extensions.sums.sum_collection import announced_contracts, close_period, open_sum
from aggregator.extensions.sums.witness_record import WitnessKeys, WitnessRecord
from aggregator.store.opener import open_store
from edge_sdk.extensions.sums.masked_sum import rounded, unpacked
from edge_sdk.extensions.sums.seed import ExchangeKey
from edge_sdk.protocol.keys import generate
from firmware_sim.fleet.federation import Federation, fetched, free_port, start_broker
from firmware_sim.fleet.processes import ProcessGroup, command, run
from firmware_sim.fleet.run_files import prepare, toml
from firmware_sim.samples import sample_set
from firmware_sim.scenario import RunSettings, Scenario

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(240)]

SOURCE = Path(__file__).parents[2] / "examples" / "device" / "device.c"
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
LIBRARIES = ("-lmosquitto", "-lcrypto", "-lm")
PATIENCE = 200.0
SMALL = Scenario(
    "a device in C",
    samples="homes",
    devices=1,
    bundle="load-mlp",
    run=RunSettings("fedavg", None, 100_000, {"steps": 2}, deadline="1h"),
    until="2018-02-01",
)
LARGE = replace(SMALL, samples="cells", bundle="cells-lstm-1", until="")


def built(folder: Path, *flags: str) -> Path:
    """Compile the example; a warning is an error."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler is installed (Debian: gcc libc6-dev)")
    for header in ("mosquitto.h", "openssl/evp.h"):
        words = [compiler, "-E", "-include", header, "-x", "c", "/dev/null"]
        if subprocess.run(words, capture_output=True, check=False).returncode:
            pytest.skip(f"{header} is not installed (Debian: libmosquitto-dev libssl-dev)")
    path = folder / "device"
    strict = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", *SANITIZERS)
    subprocess.run([compiler, *strict, *flags, "-o", path, SOURCE, *LIBRARIES], check=True)
    return path


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    return built(tmp_path_factory.mktemp("device"))


class Fleet:
    """A broker, a real daemon, and a device in C that is enrolled."""

    def __init__(
        self,
        folder: Path,
        family: ProcessGroup,
        chosen: Scenario,
        kind: str,
        program: Path,
        *,
        is_revoked: bool = False,
        section: str = "",
    ) -> None:
        self.program = self.again = program
        self.state = folder / "state"
        self.url = start_broker(family, folder / "broker", kind)
        if kind == "embedded":  # speaks MQTT 3.1.1 at the next port
            self.url = f"mqtt://127.0.0.1:{int(self.url.rsplit(':', 1)[1]) + 1}"
        page = f"127.0.0.1:{free_port()}"
        prepared = prepare(
            folder / "fleet",
            "north",
            chosen,
            sample_set(chosen.samples),
            broker=self.url,
            page=page,
        )
        self.config = prepared.aggregator
        if kind == "embedded":  # it ends where a client of MQTT 5 sends one of 3.1.1 properties
            settings = tomllib.loads(self.config.read_text("utf-8"))
            settings["broker"]["protocol"] = 4
            self.config.write_text(toml(settings), "utf-8")
        public = subprocess.run(
            [program, "keygen", self.state], capture_output=True, text=True, check=True
        ).stdout.strip()
        self.say("enrol", "c-1", "--public", public, "--config")
        if is_revoked:
            self.say("revoke", "c-1", "--config")
        if section:
            self.config.write_text(self.config.read_text("utf-8") + section, "utf-8")
            self.say("sums", "announce", "--config")
        self.run = Federation(prepared, 1, family)
        self.run.start_aggregator()

    def say(self, *words: str) -> str:
        return run(command("gridfed-aggregator", *words, str(self.config)))

    def refused(self) -> dict[str, int]:
        """How often the aggregator refused what, by reason."""
        return json.loads(fetched(self.run.prepared.page, "/status") or "{}")["refused"]

    def start(self, name: str = "c-1", action: str = "run") -> subprocess.Popen[str]:
        port = self.url.rsplit(":", 1)[1]
        root = (self.config.parent / "aggregator" / "root.pub").read_text("ascii").strip()
        state = self.state if name == "c-1" else self.state.with_name(name)
        words = [self.program, action, state, "127.0.0.1", port, "north", name, root]
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def finish(self, code: int = 0, **device_and_action: str) -> str:
        """Run the device to its end and return what it printed; it must have ended with a code."""
        with self.start(**device_and_action) as device:
            try:
                said, _ = device.communicate(timeout=PATIENCE)
            finally:
                device.kill()
        assert device.returncode == code, said
        return said


@pytest.fixture
def fleet(tmp_path, program):
    with ProcessGroup(tmp_path / "logs") as family:

        def make(chosen: Scenario = SMALL, kind: str = "embedded", **options: object) -> Fleet:
            if kind == "embedded" and not has_embedded():
                pytest.skip("the embedded broker (iotcore) is not installed")
            if kind == "mosquitto" and mosquitto_program() is None:
                pytest.skip("mosquitto is not installed")
            return Fleet(tmp_path, family, chosen, kind, program, **options)

        yield make


@pytest.mark.parametrize("kind", ["embedded", "mosquitto"])
def test_a_c_device_joins_uploads_and_gets_a_receipt(fleet, kind):
    assert re.fullmatch(r"welcome life=1\nreceipt code=0 round=\d+\n", fleet(kind=kind).finish())


def test_a_restarted_device_sends_a_new_hello_and_answers_the_next_round(fleet):
    one = fleet(kind="mosquitto")
    assert re.fullmatch(r"welcome life=1\nreceipt code=0 round=1\n", one.finish())
    assert re.fullmatch(r"welcome life=2\nreceipt code=0 round=2\n", one.finish())


def test_a_large_update_is_sent_in_chunks(fleet):
    one = fleet(LARGE, "mosquitto")
    assert re.search(r"receipt code=0 round=\d+\n", one.finish())
    assert (one.state / "outbox").stat().st_size == 0


def test_after_a_power_cut_the_same_bytes_are_sent_again(fleet, tmp_path):
    """Charged, numbered and saved, but not sent: the next process says it is open, and sends it."""
    one = fleet(kind="mosquitto")
    one.program = built(tmp_path, "-DCRASH_AFTER_RELEASE")
    assert "welcome life=1" in one.finish(code=3)
    assert (one.state / "outbox").stat().st_size > 0
    one.program = one.again
    assert re.search(r"welcome life=2\nreceipt code=0 round=\d+\n", one.finish())
    assert one.refused() == {}
    assert one.finish().startswith("welcome life=3\nreceipt code=0")


def test_a_revoked_device_stops(fleet):
    """REVOKED ends the process: it says nothing more (PROTOCOL.md section 8)."""
    one = fleet(kind="mosquitto", is_revoked=True)
    assert one.finish(code=4) == "refusal code=7\n"


SUMS = """
[sums]
few = true
witness_open = "{open}"
witness_sign = "{sign}"
[[sums.contract]]
name = "feeder-history"
source = "history"
stream = "elec.import.energy"
unit = "kWh"
lowest = -20.0
highest = 50.0
resolution = 0.001
length = 6
period = "1h"
due = "3h"
least = 2
"""
NUMBERS = {
    "c-1": [-99.0, -20.0, 0.0005, 0.0015, 49.9996, 99.0],
    "c-2": [1.5, 2.25, 3.0, 4.0, 5.0, 6.0],
}


@pytest.mark.extension
def test_two_c_devices_send_a_sum_that_aggregator_and_witness_open(fleet, tmp_path):
    keys = WitnessKeys(generate(), ExchangeKey.generate())
    section = SUMS.format(open=keys.open.public.hex(), sign=keys.sign.public.hex())
    one = fleet(kind="mosquitto", section=section)
    second = one.state.with_name("c-2")
    words = [one.program, "keygen", second]
    public = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    one.say("enrol", "c-2", "--public", public, "--config")
    for name, state in (("c-1", one.state), ("c-2", second)):
        (state / "numbers").write_text("".join(f"{x}\n" for x in NUMBERS[name]))
        said = one.finish(name=name, action="sum")
        assert re.search(r"welcome life=1\nsum receipt until=\d+\n$", said)
    assert one.finish(action="sum") == "welcome life=2\nno sum is due\n"
    assert set(one.refused()) <= {"UNKNOWN_CLIENT"}  # c-2 until its enrolment was read
    one.run.family.stop([one.run.aggregator])
    config = AggregatorConfig.load(one.config)
    with open_store(config.database) as store, WitnessRecord(tmp_path / "w.db", 2) as record:
        record.enrol("north", [(x.id, key) for x in store.devices.all() for key in x.sign])
        with store.transaction():
            (contract,) = announced_contracts(store, "north")
            (period,) = store.table(SumTable).periods(contract)
            (found,) = close_period(store, "north", contract, period, 0)
            open_sum(store, record.open(found.write(), keys), keys.sign.public, 0)
        ((_, total, _),) = store.table(SumTable).answers()
    plain = [rounded(np.array(row), contract.terms) for row in NUMBERS.values()]
    assert unpacked(total, 6).tolist() == (plain[0] + plain[1]).tolist()
