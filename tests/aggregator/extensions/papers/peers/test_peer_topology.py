"""Who is linked to whom: an aggregator that hosts a topology, and a device that reads it."""

import numpy as np
import pytest

from aggregator.extensions.papers.geo_neighbours import paired
from aggregator.extensions.papers.peers.peer_topology import (
    DflGt,
    DflSgd,
    ExchangeSettings,
    hosting,
    linked,
)
from aggregator.methods import METHODS, OPEN, Credited, Linked, Setup
from aggregator.methods.base.round_machine import Rounds
from aggregator.rules import bind
from aggregator.store.state_codec import flatten
from edge_sdk.app.schema import SchemaError
from edge_sdk.extensions.peers import mixing_matrix
from edge_sdk.extensions.peers.topology import (
    NeighboursSection,
    settings_of_section,
    settings_of_task,
)
from edge_sdk.protocol import messages as m
from edge_sdk.protocol.contract.method import CONTRACTS, Due, Member, Task


class Host:
    """The half, and everything it said."""

    def __init__(self, settings, quorum=3, folder=None, **more):
        rounds = Rounds(quorum=quorum)
        more |= {} if folder is None else {"folder": folder}
        self.half = hosting(Setup(bind("mean"), settings, rounds, **more))
        self.state, self.said = self.half.init(np.zeros(2, np.float32)), []
        self.hear(OPEN)

    def hear(self, event):
        self.state, self.said = self.half.apply(self.state, event)
        return self.said

    def come(self, *names):
        for name in names:
            said = self.hear(Member(name, present=True))
        return said

    def asked(self):
        return [one.to for one in self.said if isinstance(one, Task)]


def test_so_many_begin_together_and_who_comes_later_is_linked_in():
    host = Host(DflSgd())
    assert not host.come("b", "a")
    host.come("c")
    assert host.asked() == ["a", "b", "c"]
    assert {one.round for one in host.said} == {2}
    host.come("d")
    assert host.asked() == ["a", "b", "c", "d"]
    assert host.state.round == 3
    assert set(host.state.links["a"]) == {"b", "d"}
    assert mixes(matrix(host.state.links))


def mixes(weights, *, negative=False):
    """Return whether the matrix is symmetric, keeps the average, and brings all to it."""
    np.testing.assert_array_equal(weights, weights.T)
    np.testing.assert_allclose(weights.sum(1), 1.0, atol=1e-12)
    is_convex = negative or bool((weights >= 0.0).all())
    return is_convex and mixing_matrix.second_eigenvalue(weights) < 1.0 - 1e-12


def matrix(links):
    names = sorted(links)
    out = np.array([[links[i].get(j, 0.0) for j in names] for i in names])
    return out + np.diag(1.0 - out.sum(axis=1))


def test_who_comes_back_hears_the_same_again_alone():
    host = Host(DflSgd())
    host.come("a", "b", "c")
    host.hear(Member("b", present=False))
    assert not host.said, "without a time to drop it, its place is kept"
    host.come("b")
    assert host.asked() == ["b"]
    assert host.state.round == 2


def test_with_trackers_who_left_is_linked_out_after_a_while():
    host = Host(DflGt(drop_after=5.0), quorum=2)
    host.come("a", "b", "c")
    (due,) = host.hear(Member("b", present=False))
    assert (due.ask, due.after) == ("gone", 5.0)
    host.hear(Due(due.round, "gone"))
    assert host.asked() == ["a", "c"]
    assert set(host.state.links) == {"a", "c"}
    again = host.state
    assert host.hear(Due(due.round, "gone")) == ()
    assert host.state is again
    host.come("b")
    assert host.asked() == ["a", "b", "c"]


def test_the_rest_go_on_even_if_they_would_have_been_too_few_to_begin():
    host = Host(DflGt(drop_after=5.0))
    host.come("a", "b", "c")
    (due,) = host.hear(Member("b", present=False))
    host.hear(due)
    assert host.asked() == ["a", "c"]
    assert set(host.state.links) == {"a", "c"}


def test_who_loses_its_last_neighbour_is_told_to_go_on_alone(tmp_path):
    (tmp_path / "road.csv").write_text("client,neighbour\na,b\nb,c\nc,d\n")
    host = Host(DflGt(drop_after=5.0, neighbours="road.csv"), folder=tmp_path)
    assert not host.come("a", "b")
    host.come("d")
    assert host.asked() == ["a", "b"], "d has nobody to begin with"
    host.come("c")
    (due,) = host.hear(Member("b", present=False))
    host.hear(due)
    assert host.asked() == ["a", "c", "d"]
    assert host.state.links["a"] == {}
    host.come("a")
    assert host.asked() == ["a"]


def test_who_is_back_in_time_keeps_its_place():
    host = Host(DflGt(drop_after=5.0))
    host.come("a", "b", "c")
    (due,) = host.hear(Member("b", present=False))
    host.come("b")
    before = host.state
    assert host.hear(due) == ()
    assert host.state is before


@pytest.mark.parametrize("name", ["metropolis", "maximum_degree", "best_constant"])
@pytest.mark.parametrize("reach", [1, 2])
def test_every_matrix_mixes(name, reach):
    links = linked(list("abcdefg"), None, ExchangeSettings(mixing=name, ring_neighbours=reach))
    assert mixes(matrix(links), negative=name == "best_constant")
    assert all(len(near) == 2 * reach for near in links.values())


def test_a_part_that_is_cut_off_mixes_by_itself():
    near = paired([("a", "b"), ("c", "d"), ("b", "c")])
    links = linked(["a", "b", "d"], near, ExchangeSettings(mixing="best_constant"))
    assert links == {"a": {"b": 0.5}, "b": {"a": 0.5}, "d": {}}


def test_a_graph_that_cannot_be_exchanged_over_is_refused(tmp_path):
    (tmp_path / "two.csv").write_text("client,neighbour\na,b\nc,d\n")
    with pytest.raises(SchemaError, match="connected"):
        Host(DflSgd(neighbours="two.csv"), folder=tmp_path)
    star = "".join(f"hub,leaf-{n}\n" for n in range(25))
    (tmp_path / "star.csv").write_text("client,neighbour\n" + star)
    with pytest.raises(SchemaError, match="at most 24"):
        Host(DflSgd(neighbours="star.csv"), folder=tmp_path)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"threshold": 3.0}, "threshold"),
        ({"neighbours": "a.csv", "ring_neighbours": 2}, "ring_neighbours"),
    ],
)
def test_what_says_two_things_is_refused(changes, key):
    with pytest.raises(ValueError, match=key):
        DflSgd(**changes)


def test_doubting_a_neighbour_is_refused_with_trackers_and_said_why():
    with pytest.raises(ValueError, match=r"robust: expected none with dfl_gt.*no longer add up"):
        DflGt(robust="clip")
    assert DflGt().values == DflSgd().values


@pytest.mark.parametrize("name", ["dfl_sgd", "dfl_gt"])
def test_every_number_it_says_is_in_the_contract(name):
    numbers = {number.name: number for number in CONTRACTS[name]["begin"].numbers}
    settings = [METHODS[name].settings(total_steps=9, rate_decay=True, order="atc")]
    if name == "dfl_sgd":
        settings += [
            DflSgd(robust="clip"),
            DflSgd(robust="trim", trim=2),
            DflSgd(wait_for_neighbours=True),
        ]
        assert settings[-1].values["insist"] == 1.0
    for one in settings:
        assert all(numbers[key].admits(value) for key, value in one.values.items())


def test_status_and_page_can_show_the_links_and_the_store_keep_them():
    host = Host(DflGt(mixing="maximum_degree"))
    host.come("a", "b", "c")
    assert isinstance(host.state, Linked)
    assert isinstance(host.state, Credited)
    assert host.state.weighs
    assert any("links" in name for name in flatten(host.state))


def test_a_device_reads_what_the_aggregator_says():
    values = DflSgd(robust="clip", radius=2.0, interval=60.0, total_steps=7, order="atc").values
    task = m.TaskMessage(1, 4, 0, "begin", bytes(16), vals=values, peers=("b",), keys=(b"k" * 32,))
    hood = settings_of_task(task)
    assert (hood.epoch, hood.interval, hood.total_steps, hood.keys) == (
        4,
        60.0,
        7,
        {"b": b"k" * 32},
    )
    assert hood.values["radius"] == 2.0
    assert hood.weight({"b": 3}, "b") == 0.25
    told = settings_of_task(
        m.TaskMessage(1, 4, 0, "begin", bytes(16), peers=("b",), keys=(b"k" * 32,), weights=(0.4,))
    )
    assert told.weight({"b": 3}, "b") == 0.4


def test_a_device_reads_its_own_configuration():
    section = NeighboursSection(
        keys={"b": "ab" * 32}, robust="trim", trim=2, order="atc", total_steps=5
    )
    hood = settings_of_section(section, "dfl_sgd")
    assert hood.values | {"rate": 0.0} == {
        "steps": 1.0, "rate": 0.0, "fading": 0.0, "order": 1.0, "robust": 2.0, "trim": 2.0,
    }  # fmt: skip
    with pytest.raises(SchemaError, match=r"robust.*no longer add up"):
        settings_of_section(section, "dfl_gt")
    insists = NeighboursSection(keys={"b": "ab" * 32}, wait_for_neighbours=True)
    assert settings_of_section(insists, "dfl_sgd").values["insist"] == 1.0
    assert "insist" not in settings_of_section(insists, "dfl_gt").values  # it does so anyway
    with pytest.raises(SchemaError, match="weights"):
        settings_of_section(NeighboursSection(keys={"b": "ab" * 32}, weights={"c": 0.5}), "dfl_sgd")
