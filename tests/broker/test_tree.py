"""A tree of real aggregators on a real broker: two sites of two devices below one parent."""

from __future__ import annotations

import json
from contextlib import contextmanager

import numpy as np
import pytest

from aggregator.config import AggregatorConfig
from aggregator.store.opener import open_store
from edge_sdk.link.mqtt import Broker, MqttLink
from edge_sdk.link.transport import Message
from edge_sdk.protocol.contract.method import Update
from firmware_sim.fleet.federation import start_broker
from firmware_sim.fleet.processes import ProcessGroup, command, run
from firmware_sim.samples import sample_set
from firmware_sim.scenario import RunSettings, Scenario
from tests.broker.conftest import require
from tools.tree import Tree, edit, fleet_of, serve

pytestmark = [pytest.mark.broker, pytest.mark.slow]

ROUNDS = 4
CHOSEN = Scenario(
    "a site of a tree",
    samples="homes",
    devices=2,
    bundle="load-mlp",
    run=RunSettings("fedavg", None, ROUNDS, {"steps": 2}, deadline="1h"),
    until="2018-02-01",
)


@contextmanager
def planted(folder, *, parent_run=None, **keys):
    """A tree whose parent and sites share a Mosquitto; nothing of it is started."""
    require("mosquitto")
    with ProcessGroup(folder / "logs") as family:
        url = start_broker(family, folder / "broker", "mosquitto")
        yield Tree.prepare(
            folder / "tree",
            family,
            urls=(url, url),
            samples=fleet_of(sample_set("homes"), 4),
            chosen=CHOSEN,
            sites=2,
            parent_run={"weighting": "samples", **(parent_run or {})},
            parent_keys={"max_count": 1, **keys},
        )


def url_of(tree):
    return AggregatorConfig.load(tree.parent.aggregator, {}).broker.url


def stored(tree, name):
    """The database of an aggregator, its last run and the leaves of that run's state."""
    config = AggregatorConfig.load(tree.files(name).aggregator, {})
    with open_store(config.database) as store:
        number = store.runs.latest().run
        return (
            store.states.load(number).leaves,
            list(store.journal.entries(number, 0)),
            store.runs.versions(number),
        )


def model(tree, name):
    return stored(tree, name)[0]["w"].astype(np.float32)


def of_site(tree, name, key):
    """What a site's status says of its parent; None while it does not answer."""
    return tree.status(name).get("parent", {}).get(key)


def updates(tree):
    """Every update that the parent has journalled."""
    return [one.event for one in stored(tree, "parent")[1] if isinstance(one.event, Update)]


def all_start(tree):
    for name in ("parent", "site-1", "site-2"):
        tree.start(name)


def finish(tree, fleets):
    everyone = [client for fleet in fleets.values() for client in fleet.clients]
    serve(list(fleets.values()), lambda: all(client.is_done for client in everyone))
    serve([], lambda: all(tree.phase(name) == "stop" for name in ("parent", "site-1", "site-2")))
    status = {name: tree.status(name) for name in ("parent", "site-1", "site-2")}
    tree.family.stop(list(tree.programs.values()))
    for name in status:
        said = json.loads(
            run(command("gridfed-aggregator", "audit", str(tree.files(name).aggregator), "--json"))
        )
        assert said["faults"] == [], name
    return status, everyone


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A run without troubles, beside which a client listens to the parent's fleet."""
    with planted(tmp_path_factory.mktemp("tree")) as tree:
        tap = MqttLink(Broker(url=url_of(tree), client_id="tap", session_expiry=0))
        tap.open()
        serve([], lambda: bool(tap.poll(0.01)) or tap.is_up)
        tap.subscribe("gf/1/utility/#")
        tap.poll(0.5)
        all_start(tree)
        heard = []
        with tree.devices() as fleets:
            everyone = list(fleets.values())

            def is_over():
                heard.extend(one for one in tap.poll(0.0) if isinstance(one, Message))
                return tree.phase("parent") == "stop"

            serve(everyone, is_over)
            status, clients = finish(tree, fleets)
        heard.extend(one for one in tap.poll(0.2) if isinstance(one, Message))
        tap.close()
        yield tree, status, clients, heard


def test_a_model_of_the_parent_reaches_every_device(undisturbed):
    tree, status, clients, _ = undisturbed
    assert status["parent"]["run"]["version"] == ROUNDS
    final = model(tree, "parent")
    for name in ("site-1", "site-2"):
        np.testing.assert_array_equal(model(tree, name), final)
        assert status[name]["parent"]["accepted"] == ROUNDS
        assert "refused" not in status[name]["parent"]
    assert len(clients) == 4
    for client in clients:
        np.testing.assert_array_equal(client.learner.spec.shared(client.state.p), final)


def test_the_update_of_a_site_is_the_change_of_its_model(undisturbed):
    tree, _, _, _ = undisturbed
    _, journal, _ = stored(tree, "site-1")
    received = [one.event for one in journal if type(one.event).__name__ == "ParentModel"]
    found = [one for one in updates(tree) if one.sender == "site-1"]
    assert [one.number for one in received] == [1, 2, 3, 4, 4]
    assert received[-1].is_last
    assert [(one.round, one.base) for one in found] == [(1, 0), (2, 1), (3, 2), (4, 3)]
    both = [[one for one in updates(tree) if one.round == number] for number in (1, 2, 3, 4)]
    for before, after, pair in zip(received, received[1:], both, strict=False):
        mean = np.mean([one.vector for one in pair], axis=0)
        np.testing.assert_allclose(before.vector - mean, after.vector, rtol=0, atol=1e-6)


def test_the_parent_sees_no_device(undisturbed):
    tree, status, clients, heard = undisturbed
    assert status["parent"]["devices"]["enrolled"] == 2
    names = {client.config.id.encode() for client in clients}
    sent = [one for one in heard if "/up/" in one.topic or one.topic.endswith("/status")]
    assert {one.topic.split("/")[3] for one in sent} == {"site-1", "site-2"}
    assert len(sent) >= 2 * ROUNDS
    for one in heard:
        assert not any(name in one.payload or name.decode() in one.topic for name in names)
    assert {one.values["n"] for one in updates(tree)} == {1.0}  # two devices, capped at one
    assert {name for one in updates(tree) for name in one.values} == {"n"}  # and no loss
    kinds = {one.topic.rpartition("/")[2] for one in sent}
    assert kinds <= {"hello", "update", "offer", "chunk", "have", "status", "metrics"}


@pytest.mark.soak
def test_a_kill_of_any_aggregator_at_any_moment_changes_no_bit(undisturbed, tmp_path):
    whole = model(undisturbed[0], "parent")
    with planted(tmp_path) as tree:
        all_start(tree)
        with tree.devices() as fleets:
            everyone = list(fleets.values())
            first, second = fleets[0], fleets[1]
            # Site 2 has closed its round and is receipted before any device of site 1 trains.
            serve([second], lambda: of_site(tree, "site-2", "accepted") == 1)
            serve([first], lambda: tree.version("site-1") >= 2)  # its first round is closed
            tree.kill("site-1")
            tree.start("site-1")
            # No device of site 2 is served, so it cannot close the round of the parent's new model.
            serve([first], lambda: tree.version("site-2") >= 3)  # it has the parent's new model
            tree.kill("parent")
            serve(everyone, lambda: of_site(tree, "site-2", "pending") == 1)  # no receipt
            tree.kill("site-2")
            tree.start("site-2")
            tree.start("parent")
            serve(everyone, lambda: tree.version("parent") >= 3)
            for name in ("parent", "site-1", "site-2"):
                tree.kill(name)
            for name in ("site-2", "site-1", "parent"):
                tree.start(name)
            status, _ = finish(tree, fleets)
        np.testing.assert_array_equal(model(tree, "parent"), whole)
        counted = [(one.sender, one.round) for one in updates(tree)]
        assert sorted(counted) == [
            (f"site-{site}", number) for site in (1, 2) for number in range(1, ROUNDS + 1)
        ]
        assert all("refused" not in status[name]["parent"] for name in ("site-1", "site-2"))


def test_a_site_that_is_cut_off_goes_on_and_offers_all_of_it_later(tmp_path):
    with planted(tmp_path, patience="1s") as tree:
        all_start(tree)
        with tree.devices() as fleets:
            everyone = list(fleets.values())
            serve(everyone, lambda: tree.version("parent") >= 1)
            tree.kill("parent")
            before = {name: tree.version(name) for name in ("site-1", "site-2")}
            serve(
                everyone,
                lambda: (
                    all(tree.version(name) >= before[name] + 3 for name in before)
                    and all(of_site(tree, name, "state") == "alone" for name in before)
                ),
            )
            tree.start("parent")
            status, _ = finish(tree, fleets)
        assert status["parent"]["run"]["version"] == ROUNDS
        log = "".join((tree.family.logs / f"aggregator-{name}.log").read_text() for name in before)
        assert "site alone" in log
        assert "carried=True" in log or any(f"rounds={n} n=1" in log for n in range(2, 40))


@pytest.mark.soak
def test_a_stale_difference_counts_with_an_asynchronous_parent(tmp_path):
    run_of_parent = {
        "method": "fedbuff",
        "quorum": 1,
        "weighting": "uniform",
        "rounds": 16,
        "settings": {"steps": 2},
    }
    with planted(tmp_path, parent_run=run_of_parent, rounds=2) as tree:
        all_start(tree)
        with tree.devices() as fleets:
            everyone = list(fleets.values())
            serve(
                everyone,
                lambda: (
                    of_site(tree, "site-1", "rounds") == "1 of 2" or tree.version("parent") >= 2
                ),
            )
            tree.kill("site-1")
            at = tree.version("parent")
            serve(everyone, lambda: tree.version("parent") >= at + 2)
            tree.start("site-1")
            before = of_site(tree, "site-1", "accepted") or 0
            serve([fleets[0]], lambda: (of_site(tree, "site-1", "accepted") or 0) > before)
            finish(tree, fleets)
        _, journal, versions = stored(tree, "parent")
        late = [one.report["staleness"].get("site-1", 0) for one in versions]
        assert max(late) >= 1
        assert {one.event.sender for one in journal if isinstance(one.event, Update)} == {
            "site-1",
            "site-2",
        }


def test_a_site_with_another_bundle_is_refused_by_name(tmp_path):
    with planted(tmp_path) as tree:
        edit(tree.sites[0].aggregator, lambda table: table["run"].update(bundle="load-lstm"))
        run(command("gridfed-aggregator", "announce", str(tree.sites[0].aggregator)))
        tree.start("parent")
        tree.start("site-1")
        serve([], lambda: "fault" in tree.status("site-1").get("parent", {}))
        fault = tree.status("site-1")["parent"]["fault"]
        assert "bundle load-mlp" in fault
        assert "set run.bundle to the parent's" in fault
        serve([], lambda: tree.status("parent").get("bundle_refused") == {"UPGRADE_REQUIRED": 1})
        assert tree.version("site-1") == 0  # it waits: patience is an hour


def test_a_site_that_was_never_enrolled_waits_and_then_goes_on(tmp_path):
    with planted(tmp_path, patience="1s") as tree:
        edit(tree.sites[0].aggregator, lambda table: table["parent"].update(id="stranger"))
        tree.start("parent")
        tree.start("site-1")
        with tree.devices([0]) as fleets:
            serve(list(fleets.values()), lambda: tree.version("site-1") >= 2)
            serve(
                list(fleets.values()),
                lambda: of_site(tree, "site-1", "state") == "alone",
            )
            serve(list(fleets.values()), lambda: tree.version("site-1") >= 4)
        assert tree.version("parent") == 0
        tree.family.stop([tree.programs["site-1"]])
