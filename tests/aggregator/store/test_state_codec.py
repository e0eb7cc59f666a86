"""States as named leaves: there and back to the bit, and an error that names the leaf."""

from dataclasses import dataclass, field, fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.extensions.papers.consensus.consensus_engine import ConsensusServerState
from aggregator.extensions.papers.peers.peer_topology import TopologyState
from aggregator.extensions.papers.split.split import SplitServerState
from aggregator.methods import METHODS, OPEN, Rounds, Setup
from aggregator.methods.asynchronous import Buffered
from aggregator.methods.base.quorum import LatestUpdates, QuorumState
from aggregator.rules import bind
from aggregator.store import state_codec
from aggregator.store.state_codec import LeafError
from edge_sdk.protocol.codec import pack_leaves, unpack_leaves
from edge_sdk.protocol.contract.method import Update


def half_of(name="fedadam"):
    return METHODS[name].half(Setup(bind("mean"), METHODS[name].settings(), Rounds(quorum=3)))


def busy(half, vectors=((1.0, 2.0),)):
    state, _ = half.apply(half.init(np.array([0.1, -0.2], np.float32)), OPEN)
    for number, vector in enumerate(vectors):
        update = Update(f"m-{number}", 1, 0, np.array(vector, np.float32), {"n": 3.0, "loss": 0.5})
        state, _ = half.apply(state, update)
    return state


@given(vectors=st.lists(st.tuples(*[st.floats(-(2.0**99), 2.0**99, width=32)] * 2), max_size=2))
def test_a_state_comes_back_to_the_bit_through_the_stores_bytes(vectors):
    half = half_of()
    state = busy(half, vectors)
    kept = {
        path: unpack_leaves(pack_leaves({"leaf": leaf}))["leaf"]
        for path, leaf in state_codec.flatten(state).items()
    }
    again = state_codec.rebuild(half.init(np.zeros(2, np.float32)), kept)
    assert state_codec.digest(again) == state_codec.digest(state)
    assert dict(again.counts) == dict(state.counts)


def test_only_what_moved_is_written():
    half = half_of()
    state = busy(half)
    before = state_codec.flatten(state)
    after, _ = half.apply(state, Update("m-9", 1, 0, np.ones(2, np.float32), {"n": 1.0}))
    assert set(state_codec.changed(before, state_codec.flatten(after))) == {
        "pending.m-9",
        "counts.m-9",
    }


def test_what_is_gone_is_deleted():
    half = half_of()
    state = busy(half)
    closed = state
    for name in ("m-1", "m-2"):
        closed, _ = half.apply(closed, Update(name, 1, 0, np.ones(2, np.float32)))
    written = state_codec.changed(state_codec.flatten(state), state_codec.flatten(closed))
    assert written["pending.m-0"] is None
    assert written["round"] == 2


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"w": np.zeros(3)}, "w"),
        ({"w": np.zeros(2, np.float32)}, "w"),
        ({"round": 1.0}, "round"),
        ({"moments.v": None}, "moments.v"),
        ({"moments.u": np.zeros(2)}, "moments.u"),
    ],
    ids=str,
)
def test_a_leaf_of_another_state_is_named(change, path):
    half = half_of()
    kept = {k: v for k, v in (state_codec.flatten(busy(half)) | change).items() if v is not None}
    with pytest.raises(LeafError, match=path) as caught:
        state_codec.rebuild(half.init(np.zeros(2, np.float32)), kept)
    assert caught.value.path == path


def test_layouts_tell_methods_and_sizes_apart():
    names = {
        state_codec.layout(half_of(name).init(np.zeros(size, np.float32)))
        for name in ("fedavg", "fedavgm", "fedadam")
        for size in (2, 3)
    }
    assert len(names) == 6


def test_an_object_is_no_leaf():
    @dataclass
    class Odd:
        thing: object = field(default_factory=object)

    with pytest.raises(TypeError, match="thing"):
        state_codec.flatten(Odd())


@dataclass(frozen=True)
class PerClient:
    round: int = 0
    rows: dict = field(default_factory=dict)
    last: dict = field(default_factory=dict)


def test_arrays_by_client_come_back_from_an_empty_template():
    rows = {f"m-{i}": {"w": np.full(2, i, np.float32), "eps": 0.5 * i} for i in range(3)}
    state = PerClient(4, rows, {"m-1": 3})
    kept = {
        path: unpack_leaves(pack_leaves({"leaf": leaf}))["leaf"]
        for path, leaf in state_codec.flatten(state).items()
    }
    again = state_codec.rebuild(PerClient(), kept)
    assert state_codec.digest(again) == state_codec.digest(state)
    assert again.rows["m-2"]["w"].dtype == np.float32
    assert (again.last, again.rows["m-1"]["eps"]) == ({"m-1": 3}, 0.5)


@dataclass(frozen=True)
class Renamed:
    round: int = 0
    newest: dict = field(default_factory=dict, metadata={"leaf": "heard"})


def test_a_renamed_field_keeps_the_name_of_its_leaves():
    leaves = state_codec.flatten(Renamed(2, {"m-1": 5}))
    assert leaves == {"round": 2, "heard.m-1": 5}
    assert state_codec.rebuild(Renamed(), leaves) == Renamed(2, {"m-1": 5})
    with pytest.raises(LeafError, match="newest"):
        state_codec.rebuild(Renamed(), {"round": 2, "newest.m-1": 5})


SAVED = {
    QuorumState: ("present", "told", "since", "arrived"),
    LatestUpdates: ("round", "version", "is_open", "w", "who", "held", "losses"),
    Buffered: ("round", "version", "is_open", "w", "pending", "heard"),
    ConsensusServerState: ("who", "dual", "owed"),
    SplitServerState: ("who", "masked", "astray", "early", "told"),
    TopologyState: ("here", "links"),
}


@pytest.mark.parametrize("state", SAVED)
def test_the_saved_names_of_a_state_never_change(state):
    """A database from before a field was renamed opens, and digests stay the same."""
    names = {one.metadata.get("leaf", one.name) for one in fields(state)}
    assert names >= set(SAVED[state])
