"""Convert a half's state to named leaves and back, so that only changed leaves are written.

A leaf is an array, a number, a text, a bool or None; its name is the path of fields and keys to
it, joined by dots: ``moments.m``, ``pending.meter-0042``. Device ids contain no dots. A field that
was renamed keeps the name of its leaves: ``field(metadata={"leaf": "old"})``.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from edge_sdk.errors import WireError
from edge_sdk.protocol.codec import Leaf, pack_leaves

S = TypeVar("S")
Leaves = Mapping[str, Leaf]


class LeafError(WireError):
    """Saved leaves that do not fit a state."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"saved state, {path}: {why}")
        self.path = path  # the leaf that does not fit


def flatten(state: Any) -> dict[str, Leaf]:  # noqa: ANN401 - any frozen dataclass of leaves
    """Return the leaves of a state (a dataclass of leaves, mappings and dataclasses) by path.

    Raises:
        TypeError: It contains a value that is no leaf.

    >>> @dataclasses.dataclass
    ... class Two:
    ...     round: int
    ...     moments: dict
    >>> flatten(Two(3, {"m": 0.5}))
    {'round': 3, 'moments.m': 0.5}
    """
    return dict(_walk("", state))


def rebuild(template: S, leaves: Leaves) -> S:
    """Return a state shaped like ``template`` that holds the saved leaves.

    The template fixes type, dtype and shape; a mapping that is empty in it (updates of a round, or
    arrays by client) accepts any keys. Values nested below those keys are returned as mappings.

    Raises:
        LeafError: A leaf is missing, left over, or of another kind or shape.
    """
    used: set[str] = set()
    state: S = _fill("", template, leaves, used)
    for path in leaves:
        if path not in used:
            raise LeafError(path, "is not part of this state")
    return state


def changed(before: Leaves, after: Leaves) -> dict[str, Leaf]:
    """Return the leaves that differ between two states; None deletes a leaf.

    Arrays are compared by identity: a half passes on an unchanged array as the same object.

    >>> w = np.zeros(2)
    >>> changed({"w": w, "round": 1, "old": 0}, {"w": w, "round": 2})
    {'round': 2, 'old': None}
    """
    out = {path: leaf for path, leaf in after.items() if not _same(before.get(path), leaf)}
    return out | {path: None for path in before if path not in after}


def digest(state: Any) -> bytes:  # noqa: ANN401 - any frozen dataclass of leaves
    """Return the 32-byte digest of every bit of a state, which an audit compares."""
    leaves = flatten(state)
    return hashlib.sha256(pack_leaves({path: leaves[path] for path in sorted(leaves)})).digest()


def layout(state: Any) -> bytes:  # noqa: ANN401 - any frozen dataclass of leaves
    """Return the 16-byte digest of the names, types and shapes of a fresh state's leaves."""
    lines = sorted(f"{path} {_form(leaf)}" for path, leaf in _walk("", state))
    return hashlib.sha256("\n".join(lines).encode()).digest()[:16]


def _walk(path: str, node: Any) -> list[tuple[str, Leaf]]:  # noqa: ANN401
    children = _children(node)
    if children is None:
        if not isinstance(node, (np.ndarray, str, bytes, bool, int, float, np.generic)):
            raise TypeError(f"{path}: a {type(node).__name__} is no leaf")
        return [(path, node)]
    return [pair for key, child in children.items() for pair in _walk(_join(path, key), child)]


def _children(node: Any) -> Mapping[str, Any] | None:  # noqa: ANN401
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        return {_saved_name(f): getattr(node, f.name) for f in dataclasses.fields(node)}
    return node if isinstance(node, Mapping) else None


def _saved_name(field: dataclasses.Field[Any]) -> str:
    name: str = field.metadata.get("leaf", field.name)
    return name


def _fill(path: str, template: Any, leaves: Leaves, used: set[str]) -> Any:  # noqa: ANN401
    if isinstance(template, Mapping):
        found = [p.removeprefix(f"{path}.") for p in leaves if p.startswith(f"{path}.")]
        if not template:
            used.update(_join(path, key) for key in found)
            return _nested({key: leaves[_join(path, key)] for key in found})
        return {k: _fill(_join(path, k), child, leaves, used) for k, child in template.items()}
    children = _children(template)
    if children is not None:
        built = {k: _fill(_join(path, k), child, leaves, used) for k, child in children.items()}
        names = {_saved_name(f): f.name for f in dataclasses.fields(template)}
        return dataclasses.replace(template, **{names[k]: value for k, value in built.items()})
    if path not in leaves:
        raise LeafError(path, "is missing")
    if _form(leaves[path]) != _form(template):
        raise LeafError(path, f"expected {_form(template)}, got {_form(leaves[path])}")
    used.add(path)
    return leaves[path]


def _nested(flat: Leaves) -> dict[str, Any]:
    """Split the joined keys below a mapping: client first, then its fields.

    >>> _nested({"m-1.dual": 0.5, "m-1.last": 3, "m-2": 1})
    {'m-1': {'dual': 0.5, 'last': 3}, 'm-2': 1}
    """
    out: dict[str, Any] = {}
    for path, leaf in flat.items():
        *above, last = path.split(".")
        node = out
        for key in above:
            node = node.setdefault(key, {})
        node[last] = leaf
    return out


def _form(leaf: Leaf) -> str:
    if isinstance(leaf, np.ndarray):
        return f"{leaf.dtype.str}{list(leaf.shape)}"
    return type(leaf).__name__


def _same(before: Leaf, after: Leaf) -> bool:
    if isinstance(after, np.ndarray) or isinstance(before, np.ndarray):
        return before is after
    return type(before) is type(after) and bool(before == after)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
