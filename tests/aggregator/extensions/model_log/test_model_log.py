"""The log of models grows with the announcements, in their transactions, and never forks."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from aggregator.extensions.model_log.model_log import LogLeaf, ModelLeaves
from aggregator.store.dialect import DatabaseUrl
from aggregator.store.errors import DatabaseError
from aggregator.store.opener import open_store
from edge_sdk.extensions.model_log import merkle_tree
from edge_sdk.extensions.model_log.log_format import LoggedModel, proved_roots
from edge_sdk.protocol.codec import decode
from edge_sdk.protocol.messages import ModelMessage
from tests.aggregator.extensions.model_log.log_writer import TOPIC, announce
from tests.aggregator.store.rig import begin

ROOT = Path(__file__).resolve().parents[4]


def root(store, size):
    return merkle_tree.root(
        size, lambda level, place: store.table(ModelLeaves).node(1, level, place)
    )


def test_each_announcement_is_the_next_leaf(store):
    begin(store)
    notes = [announce(store) for _ in range(9)]
    assert [one.size for one in notes] == list(range(1, 10))
    assert [one.root for one in notes] == [root(store, size) for size in range(1, 10)]
    leaves = [LoggedModel.parse(one.data) for one in store.table(ModelLeaves).leaves(1)]
    assert [one.round for one in leaves] == list(range(1, 10))
    assert [one.index for one in store.table(ModelLeaves).leaves(1, 4, 6)] == [4, 5]
    message = decode(ModelMessage, store.announcements.get(TOPIC))
    note, before = proved_roots(message, bytes(32), "north")
    assert (note.checkpoint.root, before) == (root(store, 9), root(store, 8))


def test_a_second_leaf_of_a_number_is_refused_and_nothing_of_its_transaction_stays(store):
    begin(store)
    announce(store)
    before = store.announcements.all()
    leaf = LogLeaf(1, 0, b"other", 1)
    with pytest.raises((DatabaseError, sqlite3.IntegrityError)):
        store.announce({TOPIC: b"other"}, also=[lambda: store.table(ModelLeaves).append(leaf)])
    assert store.announcements.all() == before
    assert store.table(ModelLeaves).size(1) == 1


def test_a_joint_transaction_that_fails_appends_nothing(store):
    begin(store)
    announce(store)
    with pytest.raises(ZeroDivisionError), store.transaction():  # noqa: PT012
        announce(store)
        raise ZeroDivisionError
    assert (store.table(ModelLeaves).size(1), len(store.runs.versions(1))) == (1, 1)
    assert announce(store).size == 2


def test_a_subtree_that_is_not_complete_is_an_error(store):
    with pytest.raises(LookupError, match="no subtree"):
        store.table(ModelLeaves).node(1, 0, 0)
    assert list(store.table(ModelLeaves).leaves(1)) == []


@pytest.mark.slow
def test_kill_9_never_makes_a_fork(path):
    """Each process continues the log of the one before it; what was committed is in the last tree."""
    rng, seen = random.Random(7), {}
    place = path.url if isinstance(path, DatabaseUrl) else str(path)
    for attempt in range(5):
        with subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.aggregator.extensions.model_log.log_writer",
                place,
                f"p{attempt}",
            ],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as process:
            lines = [process.stdout.readline() for _ in range(rng.randrange(1, 20))]
            process.kill()
            lines += process.stdout.read().rpartition("\n")[0].splitlines()
        for size, value in map(str.split, lines):
            assert seen.setdefault(int(size), value) == value
    with open_store(path) as store:
        total = store.table(ModelLeaves).size(1)
        assert len(store.runs.versions(1)) == total >= max(seen)
        message = decode(ModelMessage, store.announcements.get(TOPIC))
        assert proved_roots(message, bytes(32), "north")[0].checkpoint.size == total
        assert {size: root(store, size).hex() for size in seen} == seen
