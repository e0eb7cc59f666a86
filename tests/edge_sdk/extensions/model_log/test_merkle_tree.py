"""Roots and proofs agree with Certificate Transparency's own numbers, and nothing else is proved."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.extensions.model_log import merkle_tree as tree

# Leaves, roots and proofs of the reference implementation of RFC 6962 (merkle_tree_test.cc).
LEAVES = [
    bytes.fromhex(text)
    for text in (
        "", "00", "10", "2021", "3031", "40414243", "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]  # fmt: skip
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


class Nodes(dict):
    """Complete subtrees of the tree that was built leaf by leaf."""

    @classmethod
    def of(cls, leaves):
        nodes = cls()
        for index, data in enumerate(leaves):
            found = tree.completed(index, tree.leaf_hash(data), nodes.at)
            nodes.update({(level, place): value for level, place, value in found})
        return nodes

    def at(self, level, place):
        return self[level, place]


def defined(leaves):
    """Return the root by the definition in RFC 9162, section 2.1.1."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\x00" + leaves[0]).digest()
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return hashlib.sha256(b"\x01" + defined(leaves[:k]) + defined(leaves[k:])).digest()


def test_roots_are_those_of_the_reference():
    nodes = Nodes.of(LEAVES)
    assert [tree.root(size, nodes.at).hex() for size in range(9)] == ROOTS


def test_proofs_are_those_of_the_reference():
    nodes = Nodes.of(LEAVES)
    path = tree.inclusion_proof(5, 8, nodes.at)
    assert [one.hex() for one in path] == [
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ]
    path = tree.consistency_proof(6, 8, nodes.at)
    assert [one.hex() for one in path] == [
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ]


def test_every_pair_of_sizes_is_consistent_and_every_leaf_included():
    data = [b"%d" % index for index in range(33)]
    nodes = Nodes.of(data)
    for size in range(1, len(data) + 1):
        root = tree.root(size, nodes.at)
        assert root == defined(data[:size])
        for index in range(size):
            path = tree.inclusion_proof(index, size, nodes.at)
            assert tree.included_root(index, size, tree.leaf_hash(data[index]), path) == root
        for before in range(size + 1):
            old = tree.root(before, nodes.at)
            path = tree.consistency_proof(before, size, nodes.at)
            assert tree.is_consistent((before, old), (size, root), path)


@given(st.lists(st.binary(max_size=4), min_size=1, max_size=70))
def test_the_proof_of_the_last_leaf_gives_both_roots(data):
    nodes = Nodes.of(data)
    size = len(data)
    path = tree.inclusion_proof(size - 1, size, nodes.at)
    before, after = tree.appended(size, tree.leaf_hash(data[-1]), path)
    assert before == defined(data[:-1])
    assert after == defined(data)
    assert tree.split(tree.joined(path)) == path


@given(st.data())
def test_a_changed_leaf_root_or_path_is_not_proved(draw):
    data = draw.draw(st.lists(st.binary(max_size=4), min_size=2, max_size=40))
    nodes, size = Nodes.of(data), len(data)
    before = draw.draw(st.integers(1, size - 1))
    old, new = (before, defined(data[:before])), (size, defined(data))
    path = list(tree.consistency_proof(before, size, nodes.at))
    assert tree.is_consistent(old, new, path)
    forged = draw.draw(st.lists(st.binary(min_size=32, max_size=32), min_size=len(path)))
    if forged != path:
        assert not tree.is_consistent(old, new, forged)
    assert not tree.is_consistent(old, new, path[:-1])
    assert not tree.is_consistent(old, new, [*path, bytes(32)])
    other = [*data[: before - 1], data[before - 1] + b"x"]
    assert not tree.is_consistent((before, defined(other)), new, path)
    index = draw.draw(st.integers(0, size - 1))
    proof = tree.inclusion_proof(index, size, nodes.at)
    leaf = tree.leaf_hash(data[index] + b"x")
    assert tree.included_root(index, size, leaf, proof) != new[1]


@pytest.mark.parametrize(
    ("index", "size", "hashes"), [(0, 0, 0), (3, 3, 2), (-1, 3, 2), (0, 3, 1), (2, 3, 2)]
)
def test_a_proof_of_another_length_is_refused(index, size, hashes):
    with pytest.raises(ValueError, match="leaf"):
        tree.included_root(index, size, bytes(32), [bytes(32)] * hashes)


def test_a_tree_does_not_shrink():
    assert not tree.is_consistent((3, bytes(32)), (2, bytes(32)), ())
    with pytest.raises(ValueError, match="beginning"):
        tree.consistency_proof(3, 2, lambda *_: bytes(32))
    with pytest.raises(ValueError, match="whole number"):
        tree.split(bytes(33))


def test_a_proof_of_ten_thousand_leaves_is_below_half_a_kilobyte():
    nodes = Nodes.of([b"%d" % index for index in range(10_000)])
    longest = max(
        len(tree.joined(tree.inclusion_proof(size - 1, size, nodes.at)))
        for size in range(1, 10_001)
    )
    assert longest == 32 * 13
