"""Sums over twelve devices: the real daemon, real clients and a real witness, day by day.

Devices and aggregator are those of the field; only the link and the clock are the test's.
"""

from __future__ import annotations

import json
import random
from types import SimpleNamespace

import numpy as np
import pytest

from aggregator.commands import main as cli
from aggregator.config import AggregatorConfig
from aggregator.extensions.model_log.program import main as witness
from aggregator.extensions.scores.score_book import histograms
from aggregator.extensions.sums.opened_sum import SumTable, opened_sums
from aggregator.extensions.sums.sum_set import read_set
from aggregator.extensions.sums.witness_command import read_keys
from aggregator.extensions.sums.witness_link import WitnessLink
from aggregator.extensions.sums.witness_record import WitnessRecord
from aggregator.store.opener import open_store
from edge_sdk import Reading
from edge_sdk.app.extensions import ExtensionIndex
from edge_sdk.extensions.sums.masked_sum import contracts_of, packed, rounded
from edge_sdk.extensions.sums.messages import SumsMessage
from edge_sdk.protocol.codec import decode
from edge_sdk.protocol.keys import kid_of, read_public, save_public
from tests.fleet.conftest import SEEDS, STREAMS, LinkFaults

pytestmark = [pytest.mark.extension, pytest.mark.timeout(600)]
DAY, HOUR = 86_400, 3600
DEVICES = 12
CONTRACT = """
[sums]
witness_open = "{witness_open}"
witness_sign = "{witness_sign}"

[[sums.contract]]
name = "feeder-history"
source = "history"
stream = "elec.import.energy"
unit = "kWh"
lowest = 0.0
highest = 50.0
resolution = 0.001
length = 24
due = "26h"
least = 3
cohort = "feeder"

[[sums.contract]]
name = "feeder-tomorrow"
source = "tomorrow"
stream = "elec.import.energy"
unit = "kWh"
lowest = 0.0
highest = 50.0
resolution = 0.001
length = 24
due = "25h"
least = 9
cohort = "feeder"
"""


def load(number, hour):
    return round((1 + number % 3) * (2 + np.sin(2 * np.pi * (hour - number) / 24)), 3)


class Feeders:
    """A world with two feeders of six homes, and a witness in a folder of its own."""

    def __init__(self, world, tmp_path, capsys, text=CONTRACT, **options):
        run = {"schedule": {"rounds_per_day": 1}}
        self.world = world(devices=DEVICES, accept={"sums": True}, hours=0, run=run, **options)
        self.clock, self.capsys, self.folder = self.world.clock, capsys, tmp_path / "witness"
        self.folder.mkdir()
        self.clock.begun = (self.clock.begun // DAY + 1) * DAY + 6 * HOUR
        self.at = int(self.clock.begun) // HOUR - 8 * 24
        keys = self.data(witness, ["sum-keys", *self.keys, "--json"])
        text = text.format(**keys).replace("\n[[", "few = true\n\n[[", 1)
        self.world.config.write_text(self.world.config.read_text() + text)
        for number in range(DEVICES):
            self.command("label", f"feeder=F{number % 2}", f"home-{number}")
        self.command("sums", "announce")
        listed = str(self.folder / "devices.txt")
        self.command("sums", "devices", "--out", listed)
        assert witness(["enrol", listed, "--fleet", "north", *self.record]) == 0

    @property
    def keys(self):
        files = ("witness.key", "witness-open.key")
        options = ("--key", "--open-key")
        pairs = zip(options, (str(self.folder / name) for name in files), strict=True)
        return [part for pair in pairs for part in pair]

    @property
    def record(self):
        return ["--record", str(self.folder / "sums.db")]

    def data(self, program, words):
        self.capsys.readouterr()
        assert program(words) == 0
        return json.loads(self.capsys.readouterr().out)

    def command(self, *words):
        assert cli.main([*words, "--config", str(self.world.config)]) == 0

    def start(self):
        self.world.start_daemon()
        for number in range(DEVICES):
            self.world.start(number)
        self.measure()
        self.turns(20)

    def measure(self):
        until = int(self.clock.begun + self.clock.now) // HOUR
        for number, client in self.world.clients.items():
            for hour in range(self.at, until):
                for stream, value in zip(STREAMS, (load(number, hour), 8.0, 3.0), strict=True):
                    client.observe(Reading(stream, float(HOUR * hour), value))
        self.at = until

    def hours(self, count):
        for _ in range(count):
            self.clock.now += HOUR
            self.measure()
            self.turns(16)

    def turns(self, number):
        for _ in range(number):
            self.world.turn(0.5)

    def sets(self):
        return sorted((self.world.folder / "aggregator" / "sums").glob("*.set"))

    def open(self, *options):
        files = [str(path) for path in self.sets()]
        return witness(["open", *files, *self.keys, *self.record, *options])

    def opened(self, *of):
        with open_store(
            self.world.folder / "aggregator" / "aggregator.db", read_only=True
        ) as store:
            return store.table(SumTable).opened(*of)


@pytest.fixture
def feeders(world, tmp_path, capsys):
    return Feeders(world, tmp_path, capsys)


def plain(found, members):
    hours = found.period // 1000 // HOUR + np.arange(24)
    return [sum(load(number, hour) for number in members) for hour in hours]


@pytest.mark.slow
def test_the_readings_of_two_feeders_are_added_and_nothing_else_is_known(feeders):
    feeders.start()
    feeders.hours(26)
    assert len(feeders.sets()) >= 2
    assert feeders.open("--least", "3") == 0
    feeders.turns(24)
    assert feeders.sets() == []
    sums = feeders.opened("feeder-history")
    assert {one.value for one in sums} == {"F0", "F1"}
    for one in sums:
        members = [n for n in range(DEVICES) if f"F{n % 2}" == one.value]
        assert (one.members, one.expected, one.unit) == (6, 6, "kWh")
        assert np.allclose(one.values, plain(one, members), atol=1e-9)
    feeders.world.kill_daemon()
    feeders.command("sums", "audit")
    words = ["feeder", "F0", "--json", "--config", str(feeders.world.config)]
    (shown,) = feeders.data(cli.main, words)["feeders"]
    newest = max((one for one in sums if one.value == "F0"), key=lambda one: one.period)
    assert shown["yesterday"]["values"] == pytest.approx(newest.values.tolist(), rel=1e-5)
    assert (shown["devices"], shown["yesterday"]["missing"]) == (6, 0)
    for number in range(DEVICES):
        feeders.command("label", f"kva={1 + number}", f"home-{number}")
    parts = {one.part for one in opened_sums(AggregatorConfig.load(feeders.world.config), 0, "kva")}
    assert parts == {1.0}


def members_of(found):
    return [int(one.device.removeprefix("home-")) for one in found.members]


def bytes_below(folder):
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def hour_vector(number, period):
    """Return the rounded numbers of a device, as a sum has them: what must be found nowhere."""
    terms = SimpleNamespace(
        lowest=0.0, highest=50.0, resolution=0.001, length=24, levels=50_000, Norm=0.0
    )
    first = period // 1000 // HOUR
    values = np.array([load(number, first + hour) for hour in range(24)])
    return packed(rounded(values, terms))


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_kills_and_a_bad_link_leave_every_opened_sum_exact(world, tmp_path, capsys, seed):
    faults = LinkFaults(drop=0.05, duplicate=0.1, reorder=0.1)
    feeders, rng = Feeders(world, tmp_path, capsys, faults=faults, seed=seed), random.Random(seed)
    feeders.start()
    for _ in range(34):
        feeders.hours(1)
        victim = rng.randrange(DEVICES + 2)
        if victim < DEVICES:
            before = sent_by(feeders.world, victim)
            feeders.world.die(victim)
            feeders.world.turn()
            feeders.world.start(victim)
            assert sent_by(feeders.world, victim) == before
        else:
            feeders.world.kill_daemon()
            feeders.world.turn()
            feeders.world.start_daemon()
    feeders.turns(200)
    sets = [read_set(path.read_bytes()) for path in feeders.sets()]
    assert len(sets) >= 2
    assert feeders.open("--least", "3") == 0
    feeders.world.kill_daemon()
    feeders.world.start_daemon()
    feeders.turns(24)
    sums = {(one.contract, one.value, one.period): one for one in feeders.opened()}
    assert len(sums) == len(sets)
    for one in sets:
        found = sums[one.contract.terms.name, one.value, one.period]
        members = members_of(one)
        assert found.members == len(members) > 2
        if found.source == "history":
            assert np.allclose(found.values, plain(found, members), atol=1e-9)
    feeders.world.kill_daemon()
    feeders.command("sums", "audit")
    aggregator = bytes_below(feeders.world.folder / "aggregator")
    for one in sets:
        if one.contract.terms.source == "history":
            for number in members_of(one):
                vector = hour_vector(number, one.period)
                assert vector not in aggregator
                assert vector not in bytes_below(feeders.folder)


def sent_by(world, number):
    return [world.clients[number]._store.paper(f"sum {one}") for one in ("history", "tomorrow")]


@pytest.mark.slow
def test_a_device_that_did_not_opt_in_and_one_without_a_label_are_in_no_sum(feeders):
    path = feeders.world.folder / "home-0.toml"
    path.write_text(path.read_text().replace('"sums" = true', '"sums" = false'))
    feeders.command("label", "feeder=", "home-1")
    feeders.start()
    feeders.hours(26)
    members = [n for path in feeders.sets() for n in members_of(read_set(path.read_bytes()))]
    assert set(members) == set(range(2, DEVICES))
    assert sent_by(feeders.world, 0) == [None, None]


@pytest.mark.slow
def test_a_forged_answer_is_not_taken(feeders):
    feeders.start()
    feeders.hours(26)
    (first, *_) = feeders.sets()
    assert feeders.open("--least", "3") == 0
    answer = first.with_suffix(".opened")
    true = answer.read_bytes()
    answer.write_bytes(true[:-1] + bytes([true[-1] ^ 1]))
    feeders.turns(24)
    assert feeders.sets() == [first]
    feeders.world.kill_daemon()
    answer.write_bytes(true)
    feeders.world.start_daemon()
    feeders.turns(24)
    assert feeders.sets() == []


def test_contracts_of_few_devices_are_refused_unless_few_is_set(world, tmp_path, capsys):
    feeders = Feeders(world, tmp_path, capsys)
    assert cli.main(["check", str(feeders.world.config)]) == 0
    text = feeders.world.config.read_text()
    feeders.world.config.write_text(text.replace("few = true", "few = false"))
    assert cli.main(["check", str(feeders.world.config)]) != 0
    assert "least: a sum of 3 devices hides little" in capsys.readouterr().err
    feeders.world.config.write_text(text.replace('source = "history"', 'source = "histories"'))
    assert cli.main(["check", str(feeders.world.config)]) != 0
    assert "'histories'; known: history, scores" in capsys.readouterr().err


def test_a_check_shows_the_loss_of_a_year_where_noise_is_on(world, tmp_path, capsys):
    feeders = Feeders(world, tmp_path, capsys, CONTRACT + "noise = 2000.0\n")
    found = feeders.data(cli.main, ["check", str(feeders.world.config), "--json"])
    assert "sums.contract feeder-history" not in found
    shown = found["sums.contract feeder-tomorrow"]
    assert shown == "epsilon 0.425 a sum, 12.2 for 365 sums of a year, delta 1e-05"


@pytest.mark.slow
def test_newer_contracts_of_a_running_daemon_are_followed_and_older_ones_refused(feeders):
    feeders.start()
    before = feeders.world.clients[1].status()["sums"]
    assert set(before) == {"feeder-history", "feeder-tomorrow"}
    text = feeders.world.config.read_text()
    feeders.world.config.write_text(text.replace("length = 24", "length = 12"))
    feeders.command("sums", "announce")
    feeders.turns(40)
    store = feeders.world.clients[1]._store
    assert [
        one.terms.length for one in contracts_of(decode(SumsMessage, store.paper("sum contracts")))
    ] == [12, 12]
    feeders.hours(26)
    assert all(read_set(path.read_bytes()).contract.terms.length == 12 for path in feeders.sets())


@pytest.mark.slow
def test_sets_are_opened_over_the_broker(world, tmp_path, capsys):
    feeders = Feeders(world, tmp_path, capsys)
    text = feeders.world.config.read_text()
    feeders.world.config.write_text(text.replace("few = true", 'few = true\nwitness = "w-1"'))
    own = read_keys(SimpleNamespace(key=feeders.keys[1], open_key=feeders.keys[3]))
    save_public(feeders.folder / "w.pub", own.sign.public)
    feeders.command("enrol", "w-1", "--public", str(feeders.folder / "w.pub"))
    feeders.start()
    public = read_public(feeders.world.folder / "aggregator" / "aggregator.pub")
    link = feeders.world.broker.link("w-1")
    link.open()
    with WitnessRecord(feeders.folder / "sums.db", 3) as record:
        served = WitnessLink(link, "north", "w-1", {kid_of(public): public}, record, own)
        served.turn(0.0)
        feeders.hours(26)
        assert feeders.sets()
        answers = 0
        for _ in range(150):
            feeders.turns(1)
            answers += served.turn(0.0)
    assert feeders.sets() == []
    assert answers >= len(feeders.opened()) >= 2
    feeders.world.kill_daemon()
    feeders.command("sums", "audit")


LONG = """
[sums]
witness_open = "{witness_open}"
witness_sign = "{witness_sign}"

[[sums.contract]]
name = "blocks"
source = "blocks"
stream = "any"
unit = "1"
lowest = 0.0
highest = 1e6
resolution = 1.0
length = 20000
due = "9h"
least = 3
"""


def test_long_vectors_travel_in_chunks_over_a_bad_link(world, tmp_path, capsys, monkeypatch):
    def blocks(device, about, _period):
        return np.arange(20_000) * (1.0 + int(device.config.id.removeprefix("home-")))

    known = ExtensionIndex.loaders

    def loaders(self, table):
        return {**known(self, table), **({"blocks": lambda: blocks} if table == "sums" else {})}

    monkeypatch.setattr(ExtensionIndex, "loaders", loaders)
    faults = LinkFaults(drop=0.05, duplicate=0.1, reorder=0.1)
    feeders = Feeders(world, tmp_path, capsys, text=LONG, faults=faults, seed=3)
    feeders.start()
    feeders.hours(1)
    for victim in (2, 5):
        feeders.world.die(victim)
        feeders.world.turn()
        feeders.world.start(victim)
    feeders.world.kill_daemon()
    feeders.world.start_daemon()
    feeders.hours(3)
    (of,) = (read_set(path.read_bytes()) for path in feeders.sets()[:1])
    assert len(of.members) >= 3
    assert feeders.open("--least", "3") == 0
    feeders.turns(24)
    found, *_ = feeders.opened()
    factor = sum(1 + number for number in members_of(of))
    assert np.array_equal(found.values, np.arange(20_000) * float(factor))
    assert (found.step, found.members) == (DAY * 1000, len(of.members))
    feeders.world.kill_daemon()
    feeders.command("sums", "audit")


@pytest.mark.slow
def test_the_audit_of_rounds_also_computes_the_sums_again(feeders):
    feeders.start()
    feeders.hours(26)
    assert feeders.open("--least", "3") == 0
    feeders.turns(24)
    feeders.world.kill_daemon()
    words = ["audit", str(feeders.world.config)]
    found = feeders.data(cli.main, [*words, "--json"])
    assert found["sound"]
    assert found["sums"]["equal"] == found["sums"]["sums"] == len(feeders.opened()) >= 2

    def change(statement):
        with open_store(feeders.world.folder / "aggregator" / "aggregator.db") as store:
            store._db.execute(statement)
            store._db.commit()

    change("UPDATE sum_opened SET total = zeroblob(length(total))")
    assert cli.main(words) == 1
    assert "the stored sum is another one" in feeders.capsys.readouterr().out
    change("DELETE FROM sum_messages")
    found = feeders.data(cli.main, [*words, "--json"])
    assert (found["sound"], found["sums"]["equal"]) == (True, 0)
    assert found["sums"]["older"] == found["sums"]["sums"]


SCORES = """
[sums]
witness_open = "{witness_open}"
witness_sign = "{witness_sign}"

[[sums.contract]]
name = "scores"
source = "scores"
stream = "error-ratio"
unit = "devices"
lowest = 0.0
highest = 1.0
resolution = 0.01
length = 8
due = "9h"
least = 9
"""


def test_a_histogram_of_scores_is_a_sum(world, tmp_path, capsys):
    feeders = Feeders(world, tmp_path, capsys, text=SCORES)
    feeders.start()
    feeders.hours(4)
    assert feeders.open("--least", "9") == 0
    feeders.turns(24)
    (found,) = feeders.opened("scores")
    assert (found.values.sum(), found.members) == (DEVICES, DEVICES)
    feeders.world.kill_daemon()
    (newest,) = histograms(AggregatorConfig.load(feeders.world.config))
    assert newest["answers"] == sum(one["devices"] for one in newest["cells"]) == DEVICES
