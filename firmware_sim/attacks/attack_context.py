"""What a liar knows in the moment it answers, and in which space it lies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edge_sdk.wire.contract.method import Up

Row = NDArray[np.float64]

Space = Literal["sent", "weights", "update"]
"""Where an attack computes: on the vector as it is sent, on trained weights, or on the change
(received minus trained)."""

_OWN_SPACE: dict[Up, Space] = {Up.DELTA: "update", Up.WEIGHTS: "weights"}

LARGEST = 3e38
"""Of a lie that still travels as float32: beyond it the real client would refuse to send."""


@dataclass(frozen=True, slots=True, eq=False)
class AttackContext:
    """One liar, one question, and everything that the threat model lets it see.

    All vectors are float64 of shape ``(P,)`` and in one space.

    Attributes:
        own: What this device would answer if it were honest.
        honest: The honest answers of the same round, shape ``(h, P)``, in order of device ids. At
            least one row: where nothing is known it is the liar's own.
        received: The model that the question carried, as weights whatever the space.
        past: What it would have answered honestly in earlier rounds, oldest first.
        models: What it had received in each of them.
        devices: How many devices there are, liars among them.
        liars: How many of them lie together.
        rng: Drawn from by the attacks that need noise; keyed, so that a repeat lies the same.
    """

    own: Row
    honest: NDArray[np.float64]
    received: Row
    past: tuple[Row, ...] = ()
    models: tuple[Row, ...] = ()
    devices: int = 1
    liars: int = 1
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    @classmethod
    def alone(cls, own: Row, received: Row | None = None) -> AttackContext:
        """Return the scene of a liar that sees nothing but itself."""
        base = np.zeros_like(own) if received is None else received
        return cls(own, own[None], base)

    @classmethod
    def among(cls, honest: NDArray[np.float64], liars: int = 1) -> AttackContext:
        """Return the scene of liars that see ``honest`` rows and would answer their mean."""
        own = honest.mean(axis=0)
        return cls(own, honest, np.zeros_like(own), devices=len(honest) + liars, liars=liars)


def told_in(
    space: Space, part: Up, act: Callable[[AttackContext], Row]
) -> Callable[[AttackContext], Row]:
    """Let an attack compute in its space, whatever is sent.

    An answer ``delta`` is received minus trained, so weights and change turn into each other by
    the same subtraction both ways.

    Args:
        space: Where ``act`` computes.
        part: What the contract asks to be answered.
        act: From a scene to a lie, in ``space``.

    Raises:
        ValueError: Neither weights nor a change can be made of what is sent (signs, a gradient).

    Example:
        Uploading the negated *weights* of a device that received 5 and trained to 4:

        >>> flip = lambda scene: -scene.own
        >>> scene = AttackContext.alone(np.array([5.0 - 4.0]), np.array([5.0]))
        >>> told_in("weights", Up.DELTA, flip)(scene), told_in("update", Up.DELTA, flip)(scene)
        (array([9.]), array([-1.]))
    """
    if space == "sent":
        return act
    if part not in _OWN_SPACE:
        raise ValueError(f"an answer {part.value!r} has no {space}; attack it as it is sent")
    if space == _OWN_SPACE[part]:
        return act
    return lambda scene: scene.received - act(_turned(scene))


def _turned(scene: AttackContext) -> AttackContext:
    """Return the scene in the other of the two spaces."""
    return replace(
        scene,
        own=scene.received - scene.own,
        honest=scene.received - scene.honest,
        past=tuple(model - sent for model, sent in zip(scene.models, scene.past, strict=True)),
    )


def sendable(lie: Row) -> Row:
    """Return a lie within what float32 can say; everything else is a fault of the protocol.

    >>> sendable(np.array([1e40, -np.inf, 2.0])).tolist()
    [3e+38, -3e+38, 2.0]
    """
    return np.clip(np.nan_to_num(lie, nan=0.0, posinf=LARGEST, neginf=-LARGEST), -LARGEST, LARGEST)
