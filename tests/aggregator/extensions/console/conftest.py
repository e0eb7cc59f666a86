"""A database with closed rounds, refusals and devices, and a console over it."""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request

import numpy as np
import pytest

from aggregator.audit_log import AuditLog, Initiator
from aggregator.config import AggregatorConfig, bind
from aggregator.extensions.feeder.feeder import FeederBook, FeederDay, FeederForecast
from aggregator.extensions.forecasts.forecast_book import ForecastBook
from aggregator.extensions.rollouts.rollout_table import DeviceTrial, RolloutChange, RolloutTable
from aggregator.extensions.sums.opened_sum import SumTable
from aggregator.extensions.sums.sum_set import SumSet, file_digest
from aggregator.operations.run_setup import set_up
from aggregator.operations.signing_keys import RootSigners
from aggregator.rounds.announcements import Ends
from aggregator.store.ledgers import Ledger, LedgerRow
from aggregator.store.opener import open_store
from aggregator.store.types import EnrolledDevice, Version
from edge_sdk.errors import Reason
from edge_sdk.extensions.outputs.forecast_message import ForecastMessage
from edge_sdk.extensions.rollouts.messages import RolloutMessage
from edge_sdk.extensions.sums.masked_sum import FollowedContract
from edge_sdk.protocol import keys, topics
from edge_sdk.protocol.codec import encode
from edge_sdk.protocol.contract.method import Update
from edge_sdk.protocol.envelope import digest, ref
from firmware_sim.fleet.federation import free_port
from tests.aggregator.conftest import ONLINE, ROOT
from tests.aggregator.extensions.console.browser import Browser

HOSTILE = "\"><script>alert(1)</script>&'/../x"
_CONTRACT = (
    '{ name = "scores", source = "scores", stream = "error-ratio", unit = "devices", lowest = 0.0, '
    "highest = 1.0, resolution = 0.01, length = 8 }"
)
_TABLES = (
    "forecasts = { store = true }\nfeeder = { forecast = true }\n"
    f"sums = {{ witness_open = '{'11' * 32}', witness_sign = '{'22' * 32}', contract = [{_CONTRACT}] }}"
)
COLLECTING = (("\n[run]\n", f"\n{_TABLES}\n\n[run]\n"),)
"""Configuration with which extensions bring their pages."""

BROUGHT = ("/rollout", "/scores", "/feeder")
BROWSER = {"origin": "http://127.0.0.1:9470"}


def open_scores(table, body, devices):
    """Store an opened sum of scores, of devices that are in the cells in turn."""
    contract = FollowedContract.read(body)
    found = SumSet("north", contract, body, 20_415 * 86_400_000, "", ())
    digest_of = file_digest(found.write())
    counts = np.bincount(np.arange(devices) % 8, minlength=8) * 100
    table.add_contract(contract, body)
    table.add_sets([(found, devices)], 0)
    table.add_opened(digest_of, devices, counts.astype(np.uint64), b"", 0)


def fill(config, *, devices=6, rounds=3):
    """Write devices, closed rounds with a rule's verdict, refusals and commands."""
    with open_store(config.database) as store:
        for n in range(devices):
            public = keys.from_seed(n.to_bytes(32, "big")).public
            labels = (("kind", "meter" if n % 2 else "cell"),)
            store.devices.save(EnrolledDevice(f"meter-{n}", (public,), labels=labels))
        store.devices.save(EnrolledDevice(HOSTILE, (bytes(32),), state="quarantined", why=HOSTILE))
        run = store.runs.latest()
        names = [f"meter-{n}" for n in range(min(devices, 4))]
        for number in range(1, rounds + 1):
            for name in names:
                vector = np.full(2, 0.1 * number, np.float32)
                update = Update(name, number, number - 1, vector, {"loss": 0.5})
                row = LedgerRow(bytes(32), 0, run.run, number)
                _, entry = store.append(name, Ledger(spent=number), (1, number), row, update)
            report = {
                "cohort": names,
                "norms": dict.fromkeys(names, 0.25),
                "weights": dict.fromkeys(names[1:], 0.5),
                "dropped": {names[0]: HOSTILE},
                "loss": 1.0 / number,
                "step": 0.1,
                "received": 1000 * number,
                "sent": 66_700,
            }
            at = 1_760_000_000_000 + number * 86_400_000
            closed = Version(run.run, number, number, True, bytes(32), report, at)
            store.commit(run.run, {}, entry.position, closed=closed)
        row = LedgerRow(bytes(32), Reason.NORM_EXCEEDED, run.run, rounds)
        store.refuse("meter-1", Ledger(spent=rounds), (1, rounds + 1), row)
        store.commands.issue("meter-1", "hello")
        let_out(store)
        if contracts := config.section("sums").contracts():
            open_scores(store.table(SumTable), encode(contracts[0]), devices)
    send_forecast(config, "meter-1")
    day = FeederDay(1_763_856_000_000, (1.0,) * 24, 18, 20)
    for name in ("F12", HOSTILE):
        feeder = FeederForecast(
            name, HOSTILE, 3_600_000, 1_763_942_400_000, (1.5,) * 24, (1.0,) * 24, (2.0,) * 24,
            "combined", 0.25, 19, 20, 30, 1_763_942_400_000, 1_763_942_400_000, day,
        )  # fmt: skip
        FeederBook.of(config).save(feeder)


def send_forecast(config, device, **changes):
    """Store a forecast of a day, as a device sends it whose owner allows that."""
    values = np.array([1.0 + 0.05 * hour for hour in range(24)])
    fields = {
        "t": 1_763_888_400_000, "start": 1_763_888_400_000, "step": 3_600_000, "num": 24,
        "stream": "elec.import.energy", "model": "load-mlp", "bundle": 2, "run": 1, "source": "model",
        "by": "tuned", "version": 3, "error": 0.125, "coverage": 0.9,
        "blob": np.stack([values, values - 0.5, values + 0.5]).astype("<f4").tobytes(),
    }  # fmt: skip
    message = ForecastMessage(**{**fields, **changes})
    assert ForecastBook.of(config).record(device, message, encode(message))


def let_out(store):
    """Write a rollout with two stages, a day of results, and orders of persons."""
    plan = RolloutMessage(
        serial=1, name="load", version=2, digest=b"t" * 32, size=900, served=b"s" * 32,
        salt=bytes(16), waves=(0.05, 1.0), shadow=1.0, days=3, least=1, margin=0.02, bound=0.01,
    )  # fmt: skip
    payload = Ends("north", ROOT).to_all(plan, "_root")
    of = ref(digest(encode(plan)))
    published = {topics.common("north", "rollout"): payload}
    for stage, who, why in ((0, "ann", "start"), (1, HOSTILE, HOSTILE)):
        change = RolloutChange(of, "run", stage, 20_780, why, who, 1_760_000_000_000)
        store.table(RolloutTable).change(change)
        store.announce(published)
    by = Initiator("console", HOSTILE)
    AuditLog(store, "north", ONLINE).record(by, "revoke", HOSTILE, reason=HOSTILE)
    for name in ("meter-0", "meter-1"):
        trial = DeviceTrial(name, "score", 20_781, {20_781: (name == "meter-0", False)})
        store.table(RolloutTable).record(of, trial)


@pytest.fixture
def config(workplace):
    """A fleet that is set up and has no device."""
    path = workplace(replacing=COLLECTING)
    found = AggregatorConfig.load(path)
    with open_store(found.database) as store:
        set_up(
            bind(found),
            store,
            root=RootSigners.of(ROOT),
            online=ONLINE.public,
            now=1_800_000_000_000,
        )
    return found


@pytest.fixture
def console():
    """Return a maker of browsers of a configuration's console."""
    from aggregator.extensions.console.app import ConsoleApp  # noqa: PLC0415 - an extra

    def make(config):
        app = ConsoleApp.of(config)
        return Browser(app.starlette(), app)

    return make


@pytest.fixture
def serve(workplace, config):
    """Return a function that starts a console in a process of its own, with more configuration."""
    processes = []

    def start(more=""):
        fill(config)
        port = free_port()
        path = workplace(f'[console]\nlisten = "127.0.0.1:{port}"\n{more}', COLLECTING)
        process = subprocess.Popen(
            [sys.executable, "-m", "aggregator.extensions.console", "--config", str(path)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        address = f"http://127.0.0.1:{port}"
        assert process.stdout.readline() == f"console of fleet north: {address}/\n"
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{address}/static/console.css", timeout=30).close()
                break
            except urllib.error.URLError:
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.1)
        return address, config, process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def served(serve):
    """A console in a process of its own: its address, the configuration and the process."""
    return serve()
