"""A device follows a log of models and no other, whatever is shown to it, and after any kill."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.model_log import merkle_tree, model_log, signed_note
from edge_sdk.extensions.model_log.log_format import checkpoint, leaf_of
from edge_sdk.extensions.model_log.model_log import ModelLog, log_summary, saved_fork, saved_log
from edge_sdk.protocol import keys
from edge_sdk.protocol import messages as m
from edge_sdk.protocol.codec import encode
from edge_sdk.store.store import DeviceStore

KEY, OTHER = keys.from_seed(b"a" * 32), keys.from_seed(b"b" * 32)
BUNDLE = b"u" * 32


class Log:
    """An aggregator's log: appends manifests, and answers hellos."""

    def __init__(self, run=1, signer=KEY, fleet="north"):
        self.run, self.signer, self.fleet = run, signer, fleet
        self.nodes, self.leaves = {}, []

    def node(self, level, place):
        return self.nodes[level, place]

    def root(self, size):
        return merkle_tree.root(size, self.node)

    def note(self, size=None):
        size = len(self.leaves) if size is None else size
        said = checkpoint(self.fleet, self.run, size, self.root(size))
        return signed_note.signed(said, self.signer).text

    def append(self, *, content=b"m", **changes):
        index = len(self.leaves)
        number = index + 1
        manifest = m.ModelMessage(
            serial=number, run=self.run, round=number, version=index, phase="train", part="shared",
            spec=b"s" * 16, enc="f4", digest=(content * 32)[:32], size=10, chunk=10, until=0, spread=0,
            inline=0, share=1.0, vals={"steps": 2.0},
        )  # fmt: skip
        manifest = replace(manifest, **changes)
        leaf = leaf_of(manifest, BUNDLE).hash
        for level, place, value in merkle_tree.completed(index, leaf, self.node):
            self.nodes[level, place] = value
        self.leaves.append(leaf)
        path = merkle_tree.inclusion_proof(index, index + 1, self.node)
        return replace(manifest, note=self.note(), path=merkle_tree.joined(path))

    def welcome(self, place, **changes):
        size = int.from_bytes(place[8:16], "big")
        path = merkle_tree.consistency_proof(
            min(size, len(self.leaves)), len(self.leaves), self.node
        )
        said = m.WelcomeMessage(
            hello=bytes(16), life=1, spent=0, time=0, wire=1, caps=(), run=self.run, inline=0,
            window=1, quota=0, hold=1, cmd=0, note=self.note(), path=merkle_tree.joined(path),
        )  # fmt: skip
        return replace(said, **changes)

    def fork(self):
        other = Log(self.run, self.signer, self.fleet)
        other.nodes, other.leaves = dict(self.nodes), list(self.leaves)
        return other


@pytest.fixture
def store(tmp_path):
    with DeviceStore.open(tmp_path) as opened:
        yield opened


def follower(store, **changes):
    known = {"keys": lambda: (OTHER.public, KEY.public), "bundle": lambda: BUNDLE}
    return ModelLog(store, "north", **{**known, **changes})


def follow(device, manifest):
    found = device.continued(manifest)
    if not device.is_behind:
        device.save(found, serial=manifest.serial)
    return not device.is_behind


def refused(device, manifest):
    with pytest.raises(Refused) as found:
        follow(device, manifest)
    return found.value.reason


def test_each_manifest_extends_the_log_and_is_saved_with_its_serial(store):
    log, device = Log(), follower(store)
    for size in range(1, 20):
        manifest = log.append()
        assert follow(device, manifest)
        assert follow(device, manifest)  # again after a reconnection
        found = saved_log(store)
        assert (found.run, found.size, found.root) == (1, size, log.root(size))
        assert store.fact("serial") == manifest.serial
        device = follower(store)  # a restart
    assert log_summary(store)["size"] == 19
    assert log_summary(store)["fork"] == ""


def test_a_model_of_its_own_is_a_fork_and_the_evidence_stays(store, caplog):
    log, device = Log(), follower(store)
    follow(device, log.append())
    other = log.fork()
    follow(device, log.append(content=b"m"))
    forged = other.append(content=b"forged")
    with caplog.at_level(logging.ERROR):
        assert refused(device, forged) is Reason.LOG_FORK  # the same size
        assert refused(device, other.append()) is Reason.LOG_FORK  # one leaf more
    assert caplog.text.count("model log fork") == 2
    device = follower(store)  # a restart
    assert not follow(device, other.append())  # two leaves more: it asks for a proof, in vain
    with pytest.raises(Refused, match="LOG_FORK"):
        device.receive_welcome(other.welcome(device.place), device.place)
    notes = saved_fork(store).split("\n\n\N{EM DASH}")
    assert len(notes) == 3
    assert log_summary(store)["fork"]
    assert follow(follower(store), log.append())  # the log of all others still counts


def test_a_gap_is_closed_by_the_welcome_and_not_by_another_log(store):
    log, device = Log(), follower(store)
    follow(device, log.append())
    other = log.fork()
    for _ in range(6):
        last = log.append()
        forged = other.append(content=b"x")
    assert not follow(device, last)
    assert saved_log(store).size == 1
    assert device.is_request_due(0.0)
    assert not device.is_request_due(model_log.REQUEST_PAUSE / 2)
    assert device.is_request_due(model_log.REQUEST_PAUSE)
    assert device.receive_welcome(log.welcome(device.place), device.place)
    assert saved_log(store).size == 7
    assert follow(device, last)
    assert refused(device, forged) is Reason.LOG_FORK


@pytest.mark.parametrize("more", [0, 1, 2])
def test_a_manifest_between_hello_and_welcome_is_no_fork(store, more):
    """The proof begins at the checkpoint that the hello stated, not at the last one."""
    log, device = Log(), follower(store)
    follow(device, log.append())
    stated, early = device.place, log.fork()
    assert follow(device, log.append())
    for _ in range(more - 1):
        log.append()
    welcome = (log if more else early).welcome(stated)
    assert device.receive_welcome(welcome, stated) == (more == 1)
    assert saved_log(store).size == 2
    assert saved_fork(store) == ""
    later = [log.append() for _ in range(3)]
    assert not follow(device, later[-1])
    assert device.receive_welcome(log.welcome(device.place), device.place)
    assert saved_log(store).size == len(log.leaves)


def test_a_welcome_for_the_size_of_another_manifest_is_a_fork(store):
    log, device = Log(), follower(store)
    follow(device, log.append())
    stated, other = device.place, log.fork()
    assert follow(device, log.append())
    other.append(content=b"x")
    with pytest.raises(Refused, match="LOG_FORK"):
        device.receive_welcome(other.welcome(stated), stated)
    assert saved_fork(store).count("gridfed-log/1/north/1\n") == 2


def test_a_welcome_from_another_log_is_a_fork(store):
    log, device = Log(), follower(store)
    follow(device, log.append())
    other = Log()
    for _ in range(3):
        other.append(content=b"x")
    with pytest.raises(Refused, match="LOG_FORK"):
        device.receive_welcome(other.welcome(device.place), device.place)
    assert saved_log(store).size == 1
    for broken in ({"path": bytes(33)}, {"path": bytes(32 * 3)}, {"note": other.note(2)}):
        with pytest.raises(Refused):
            device.receive_welcome(replace(other.welcome(device.place), **broken), device.place)
    later = Log(run=2)
    later.append()
    is_followed = device.receive_welcome(later.welcome(device.place), device.place)
    assert not is_followed  # another run
    assert not device.receive_welcome(log.welcome(device.place, note=None), device.place)
    assert not follower(store, name="chargers").receive_welcome(
        log.welcome(device.place), device.place
    )


def test_a_rolled_back_log_is_refused(store):
    log, device = Log(), follower(store)
    manifests = [log.append() for _ in range(3)]
    for manifest in manifests:
        follow(device, manifest)
    shorter = Log()
    shorter.append()
    forged = replace(shorter.append(), serial=99)
    leaf = leaf_of(forged, BUNDLE)
    assert leaf.serial == 99
    assert refused(device, manifests[1]) is Reason.ROLLBACK
    with pytest.raises(Refused, match="ROLLBACK"):
        device.receive_welcome(shorter.welcome(device.place), device.place)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"round": 9}, Reason.BAD_DIGEST),
        ({"version": 9}, Reason.BAD_DIGEST),
        ({"digest": b"x" * 32}, Reason.BAD_DIGEST),
        ({"vals": {"steps": 3.0}}, Reason.BAD_DIGEST),
        ({"share": 0.5, "cohort": b"c" * 16}, Reason.BAD_DIGEST),
        ({"spec": b"t" * 16}, Reason.BAD_DIGEST),
        ({"path": bytes(32)}, Reason.BAD_DIGEST),
        ({"path": b""}, Reason.MALFORMED),
        ({"path": bytes(31)}, Reason.MALFORMED),
        ({"note": "x"}, Reason.MALFORMED),
        ({"note": None, "path": b""}, Reason.NOT_LOGGED),
    ],
)
def test_a_manifest_that_is_not_what_was_logged_is_refused(store, change, reason):
    log, device = Log(), follower(store)
    follow(device, log.append())
    assert refused(device, replace(log.append(), **change)) is reason
    assert saved_log(store).size == 1


def test_a_checkpoint_of_another_key_fleet_run_or_bundle_is_refused(store):
    assert (
        refused(follower(store, keys=lambda: (OTHER.public,)), Log().append())
        is Reason.BAD_SIGNATURE
    )
    assert refused(follower(store), Log(fleet="south").append()) is Reason.MALFORMED
    assert refused(follower(store, bundle=lambda: b"v" * 32), Log().append()) is Reason.BAD_DIGEST
    other_run = replace(Log(run=2).append(), run=1)
    assert refused(follower(store), other_run) is Reason.MALFORMED
    assert saved_log(store) is None


def test_an_aggregator_without_a_log_is_followed_until_the_first_proof(store):
    log, device = Log(), follower(store)
    plain = replace(log.append(), note=None, path=b"")
    assert follow(device, plain)
    assert store.fact("serial") == plain.serial
    assert device.place == b""
    assert follow(device, log.append())
    assert refused(device, replace(log.append(), note=None, path=b"")) is Reason.NOT_LOGGED


def test_a_new_run_begins_a_new_log_and_the_first_forgets_nothing(store):
    first, second, device = Log(), Log(run=2), follower(store)
    follow(device, first.append())
    assert follow(device, second.append())
    assert saved_log(store).run == 2
    named = follower(store, name="chargers")
    assert named.place == b""
    assert follow(named, Log(run=3).append())
    assert (saved_log(store).run, saved_log(store, "chargers").run) == (2, 3)


def test_a_damaged_record_counts_as_none(store):
    for data in (b"", b"\x02" + bytes(20), b"\x01" + bytes(8) + b"\xff", b"\x01" + bytes(8) + b"x"):
        store.file_paper("model log ", data)
        assert saved_log(store) is None


def test_the_proof_of_a_long_log_stays_below_a_kilobyte(store):
    log, device = Log(), follower(store)
    for index in range(1023):
        log.nodes.update(
            {
                (level, place): value
                for level, place, value in merkle_tree.completed(
                    index, merkle_tree.leaf_hash(b"%d" % index), log.node
                )
            }
        )
        log.leaves.append(b"")
    manifest = log.append()
    proof = len(encode(manifest)) - len(encode(replace(manifest, note=None, path=b"")))
    assert follow(device, manifest)
    assert proof <= 640
