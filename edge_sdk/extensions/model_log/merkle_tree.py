"""Compute roots and proofs of an append-only Merkle tree (RFC 9162, section 2.1; as in RFC 6962).

A leaf is hashed as SHA-256(0x00 || data), an inner node as SHA-256(0x01 || left || right). Hashes are 32
bytes. A proof is a tuple of hashes, from the leaf upwards. Proofs are computed from the hashes of complete
subtrees: level 0 are the leaves, and node ``i`` of level ``k`` covers the leaves from ``i * 2**k`` on.

The proof that the last leaf of a tree is in it lists the complete subtrees of the tree without that leaf.
It therefore gives both roots, before and after: ``appended`` returns them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

HASH_SIZE = 32
LEVELS_LIMIT = 64
"""Most hashes of an inclusion proof: a tree never has 2**64 leaves."""

EMPTY_ROOT = hashlib.sha256(b"").digest()
"""Root of the tree without leaves."""

NodeOf = Callable[[int, int], bytes]
"""Level and number of a complete subtree to its hash."""


def leaf_hash(data: bytes) -> bytes:
    """Return the hash of a leaf.

    >>> leaf_hash(b"").hex()[:16]
    '6e340b9cffb37a98'
    """
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def completed(index: int, leaf: bytes, node_of: NodeOf) -> list[tuple[int, int, bytes]]:
    """Return the subtrees that a new leaf completes, as level, number and hash; the leaf comes first.

    Args:
        index: Number of the new leaf, from 0.

    >>> known = {}
    >>> for i in range(4):
    ...     for level, place, value in completed(i, leaf_hash(b"%d" % i), lambda k, n: known[k, n]):
    ...         known[level, place] = value
    >>> sorted(known)
    [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (2, 0)]
    """
    level, place, value = 0, index, leaf
    found = [(level, place, value)]
    while place % 2:
        value = node_hash(node_of(level, place - 1), value)
        level, place = level + 1, place // 2
        found.append((level, place, value))
    return found


def root(size: int, node_of: NodeOf) -> bytes:
    """Return the root of the first ``size`` leaves.

    >>> root(0, lambda level, place: b"") == EMPTY_ROOT
    True
    """
    return _range_root(0, size, node_of) if size else EMPTY_ROOT


def inclusion_proof(index: int, size: int, node_of: NodeOf) -> tuple[bytes, ...]:
    """Return the proof that leaf ``index`` is in the tree of the first ``size`` leaves."""
    if not 0 <= index < size:
        raise ValueError(f"leaf {index} is not in a tree of {size}")
    low, high, path = 0, size, []
    while high - low > 1:
        middle = low + _split(high - low)
        if index < middle:
            path.append(_range_root(middle, high, node_of))
            high = middle
        else:
            path.append(_range_root(low, middle, node_of))
            low = middle
    return tuple(reversed(path))


def consistency_proof(before: int, after: int, node_of: NodeOf) -> tuple[bytes, ...]:
    """Return the proof that the first ``before`` of ``after`` leaves are the tree of that size.

    It is empty if the sizes are equal, or ``before`` is 0.

    Raises:
        ValueError: ``before`` is larger than ``after``.
    """
    if not 0 <= before <= after:
        raise ValueError(f"a tree of {before} leaves is not the beginning of one of {after}")
    if before in (0, after):
        return ()
    low, high, path, is_whole = 0, after, [], True
    while before != high:
        middle = low + _split(high - low)
        if before <= middle:
            path.append(_range_root(middle, high, node_of))
            high = middle
        else:
            path.append(_range_root(low, middle, node_of))
            low, is_whole = middle, False
    if not is_whole:
        path.append(_range_root(low, high, node_of))
    return tuple(reversed(path))


def included_root(index: int, size: int, leaf: bytes, path: Sequence[bytes]) -> bytes:
    """Return the root that a proof of inclusion leads to; the leaf is in the tree that has this root."""
    if not 0 <= index < size:
        raise ValueError(f"leaf {index} is not in a tree of {size}")
    inner = (index ^ (size - 1)).bit_length()
    if len(path) != inner + (index >> inner).bit_count():
        raise ValueError(f"{len(path)} hashes do not prove leaf {index} of {size}")
    value = leaf
    for level, sibling in enumerate(path):
        is_right = level >= inner or index >> level & 1
        value = node_hash(sibling, value) if is_right else node_hash(value, sibling)
    return value


def appended(size: int, leaf: bytes, path: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return the roots before and after the last leaf, from the proof that it is included.

    Args:
        path: Proof of inclusion of leaf ``size - 1``.

    >>> one, two = leaf_hash(b"1"), leaf_hash(b"2")
    >>> appended(2, two, (one,)) == (one, node_hash(one, two))
    True
    """
    after = included_root(size - 1, size, leaf, path)
    if not path:
        return EMPTY_ROOT, after
    before = path[0]
    for sibling in path[1:]:
        before = node_hash(sibling, before)
    return before, after


def is_consistent(
    before: tuple[int, bytes], after: tuple[int, bytes], path: Sequence[bytes]
) -> bool:
    """Return whether a proof shows that one tree is the beginning of another.

    Args:
        before: Size and root of the smaller tree.
        after: Size and root of the larger tree.
        path: Proof of consistency (RFC 9162, section 2.1.4.2).

    >>> one, two = leaf_hash(b"1"), leaf_hash(b"2")
    >>> is_consistent((1, one), (2, node_hash(one, two)), (two,))
    True
    >>> is_consistent((1, two), (2, node_hash(one, two)), (two,))
    False
    """
    (first, old), (second, new) = before, after
    if not 0 <= first <= second:
        return False
    if first in (0, second):
        return not path and (old == EMPTY_ROOT if first == 0 else old == new)
    rest = list(path)
    if first & (first - 1) == 0:
        rest.insert(0, old)
    if not rest:
        return False
    place, last = first - 1, second - 1
    while place & 1:
        place, last = place >> 1, last >> 1
    small = large = rest[0]
    for sibling in rest[1:]:
        if last == 0:
            return False
        if place & 1 or place == last:
            small, large = node_hash(sibling, small), node_hash(sibling, large)
            while place and not place & 1:
                place, last = place >> 1, last >> 1
        else:
            large = node_hash(large, sibling)
        place, last = place >> 1, last >> 1
    return last == 0 and small == old and large == new


def joined(path: Sequence[bytes]) -> bytes:
    """Return a proof as bytes: its hashes one after another."""
    return b"".join(path)


def split(path: bytes) -> tuple[bytes, ...]:
    """Return the hashes of a proof in bytes."""
    if len(path) % HASH_SIZE:
        raise ValueError(f"{len(path)} bytes are no whole number of hashes")
    return tuple(path[i : i + HASH_SIZE] for i in range(0, len(path), HASH_SIZE))


def _split(size: int) -> int:
    """Return the largest power of two below a size of at least 2."""
    return 1 << ((size - 1).bit_length() - 1)


def _range_root(low: int, high: int, node_of: NodeOf) -> bytes:
    size = high - low
    if size & (size - 1) == 0:
        level = size.bit_length() - 1
        return node_of(level, low >> level)
    middle = low + _split(size)
    return node_hash(_range_root(low, middle, node_of), _range_root(middle, high, node_of))
