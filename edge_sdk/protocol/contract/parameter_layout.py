"""Define the layout of a model's flat vector: the slice of each layer, and which are shared."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import WireError
from edge_sdk.protocol.msgpack_reader import text

Vector = NDArray[np.float32]


class LayoutError(WireError):
    """An error: an invalid layout, or an invalid list of shared patterns."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One named array of the model and its position in the flat vector."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class ParamSpec:
    """The layout of one flat float32 vector, row-major, names in model order.

    ``shared_names`` are the layers that are exchanged; all others are personal and stay on the
    device.

    >>> spec = ParamSpec.of([("body.w", (2, 2)), ("head.w", (3,))], shared=["body."])
    >>> spec.size, spec.shared_size
    (7, 4)
    >>> p = np.arange(7, dtype=np.float32)
    >>> spec.shared(p)
    array([0., 1., 2., 3.], dtype=float32)
    >>> spec.place(p, np.zeros(4, np.float32))
    array([0., 0., 0., 0., 4., 5., 6.], dtype=float32)
    >>> spec.lift(np.ones(4, np.float32))
    array([1., 1., 1., 1., 0., 0., 0.], dtype=float32)
    """

    layers: tuple[Layer, ...]
    shared_names: frozenset[str]

    @classmethod
    def of(
        cls, shapes: Iterable[tuple[str, Sequence[int]]], shared: Sequence[str] = ("",)
    ) -> ParamSpec:
        """Lay out named shapes one after the other and mark the layers that match ``shared``.

        Args:
            shapes: ``(name, dimensions)`` in model order.
            shared: Name prefixes of the layers to exchange; ``("",)`` is all, ``()`` is none.

        Raises:
            LayoutError: A repeated name, a bad dimension, or a pattern that matches nothing.
        """
        layers: list[Layer] = []
        offset = 0
        for name, shape in shapes:
            if any(layer.name == name for layer in layers):
                raise LayoutError(f"layer {name!r} appears twice")
            if any(dim < 1 for dim in shape):
                raise LayoutError(f"layer {name!r} has an empty dimension: {tuple(shape)}")
            layers.append(Layer(name, tuple(int(dim) for dim in shape), offset))
            offset += layers[-1].size
        return cls(tuple(layers), frozenset()).with_shared(shared)

    def with_shared(self, patterns: Sequence[str]) -> ParamSpec:
        """Return the same layout with the layers whose names start with a pattern shared.

        Raises:
            LayoutError: A pattern matches no layer, for instance because it is misspelt.
        """
        for pattern in patterns:
            if not any(layer.name.startswith(pattern) for layer in self.layers):
                known = ", ".join(layer.name for layer in self.layers)
                raise LayoutError(f"shared pattern {pattern!r} matches no layer; layers: {known}")
        names = frozenset(
            layer.name for layer in self.layers if layer.name.startswith(tuple(patterns))
        )
        return ParamSpec(self.layers, names)

    @cached_property
    def size(self) -> int:
        return sum(layer.size for layer in self.layers)

    @cached_property
    def shared_size(self) -> int:
        return sum(layer.size for layer in self.layers if layer.name in self.shared_names)

    @cached_property
    def digest(self) -> bytes:
        """Return 16 bytes that identify the *shared* layout (`PROTOCOL.md` section 7)."""
        return layout_digest([x for x in self.layers if x.name in self.shared_names])

    @cached_property
    def whole_digest(self) -> bytes:
        """Return the 16 bytes over every layer; a saved vector must match them."""
        return layout_digest(self.layers)

    @cached_property
    def _mask(self) -> NDArray[np.bool_]:
        mask = np.zeros(self.size, np.bool_)
        for layer in self.layers:
            if layer.name in self.shared_names:
                mask[layer.offset : layer.offset + layer.size] = True
        return mask

    def shared(self, p: Vector) -> Vector:
        """Copy the shared slices out of a whole vector, in model order: ``(shared_size,)``."""
        return np.ascontiguousarray(self._whole(p)[self._mask])

    def personal(self, p: Vector) -> Vector:
        """Copy the personal slices out of a whole vector, in model order."""
        return np.ascontiguousarray(self._whole(p)[~self._mask])

    def place(self, p: Vector, w: Vector) -> Vector:
        """Return a new whole vector: shared slices from ``w``, personal ones from ``p``."""
        out = self._whole(p).copy()
        out[self._mask] = self._part(w)
        return out

    def lift(self, w: Vector) -> Vector:
        """Return a whole vector that is ``w`` on the shared slices and zero elsewhere."""
        out = np.zeros(self.size, self._part(w).dtype)
        out[self._mask] = w
        return out

    def _whole(self, p: Vector) -> Vector:
        if p.shape != (self.size,):
            raise LayoutError(f"expected a vector of {self.size} scalars, got shape {p.shape}")
        return p

    def _part(self, w: Vector) -> Vector:
        if w.shape != (self.shared_size,):
            raise LayoutError(f"expected {self.shared_size} shared scalars, got shape {w.shape}")
        return w


def layout_digest(layers: Iterable[Layer]) -> bytes:
    """Return the first 16 bytes of SHA-256 over the canonical msgpack of ``[[name, [dims]], …]``.

    >>> layout_digest([Layer("w", (2,), 0)]).hex()
    '223bc5eaf8caf6e0b006fee5a747c7dd'
    """
    rows = [
        b"\x92" + text(x.name) + _pack_head(0x90, 0xDC, len(x.shape)) + _pack_ints(x.shape)
        for x in layers
    ]
    packed = _pack_head(0x90, 0xDC, len(rows)) + b"".join(rows)
    return hashlib.sha256(b"gridfed/1/spec\0" + packed).digest()[:16]


# Three shapes of msgpack are enough for a layout; writing them here keeps the digest independent
# of any codec's options, and of whether a codec is installed at all.


def _pack_head(fix: int, wide: int, count: int) -> bytes:
    return bytes([fix | count]) if count < 16 else bytes([wide]) + count.to_bytes(2, "big")


def _pack_ints(values: Iterable[int]) -> bytes:
    out = bytearray()
    for value in values:
        if value < 0x80:
            out.append(value)
        elif value < 0x100:
            out += bytes([0xCC, value])
        elif value < 0x10000:
            out += b"\xcd" + value.to_bytes(2, "big")
        else:
            out += b"\xce" + value.to_bytes(4, "big")
    return bytes(out)
