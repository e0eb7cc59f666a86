"""Context of an attack: the knowledge of a Byzantine device under the threat model, and its space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edge_sdk.protocol.contract.method import Up

Row = NDArray[np.float64]

Space = Literal["sent", "weights", "update"]
"""Space in which an attack computes: the vector as it is sent, trained weights, or the change
(received minus trained)."""

_OWN_SPACE: dict[Up, Space] = {Up.DELTA: "update", Up.WEIGHTS: "weights"}

# largest value of an attack as float32: beyond it the real client would refuse to send
LARGEST = 3e38


@dataclass(frozen=True, slots=True, eq=False)
class AttackContext:
    """Input of one attack: one Byzantine device, one task, and its knowledge under the threat model.

    All vectors are float64 of shape ``(P,)`` and in one space.
    """

    own: Row  # the honest update of this device
    # the honest updates of the same round, shape ``(h, P)``, in order of device ids. At least one
    # row: where none is known it is the device's own.
    honest: NDArray[np.float64]
    received: Row  # the model that the task carried, as weights in every space
    past: tuple[Row, ...] = ()  # its own honest updates of earlier rounds, oldest first
    models: tuple[Row, ...] = ()  # the models that it received in each of them
    devices: int = 1  # number of devices, Byzantine ones included
    byzantine: int = 1  # number of colluding Byzantine devices
    # generator of attacks with noise; keyed, so that a repeat draws the same
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    @classmethod
    def alone(cls, own: Row, received: Row | None = None) -> AttackContext:
        """Return the context of a device that receives nothing but its own update."""
        base = np.zeros_like(own) if received is None else received
        return cls(own, own[None], base)

    @classmethod
    def among(cls, honest: NDArray[np.float64], byzantine: int = 1) -> AttackContext:
        """Return the context of devices that receive ``honest`` rows, whose mean is their own."""
        own = honest.mean(axis=0)
        return cls(
            own, honest, np.zeros_like(own), devices=len(honest) + byzantine, byzantine=byzantine
        )


def in_space(
    space: Space, part: Up, act: Callable[[AttackContext], Row]
) -> Callable[[AttackContext], Row]:
    """Let an attack compute in its space, whichever vector is sent.

    An update ``delta`` is received minus trained, so weights and change are derived from each other
    by the same subtraction.

    Args:
        space: Space in which ``act`` computes.
        part: Kind of update that the contract asks for.
        act: Map from a context to a vector, in ``space``.

    Raises:
        ValueError: Neither weights nor a change can be derived from the update (signs, a gradient).

    Example:
        Uploading the negated *weights* of a device that received 5 and trained to 4:

        >>> flip = lambda scene: -scene.own
        >>> scene = AttackContext.alone(np.array([5.0 - 4.0]), np.array([5.0]))
        >>> in_space("weights", Up.DELTA, flip)(scene), in_space("update", Up.DELTA, flip)(scene)
        (array([9.]), array([-1.]))
    """
    if space == "sent":
        return act
    if part not in _OWN_SPACE:
        raise ValueError(f"part {part.value!r} has no {space}: set target=sent")
    if space == _OWN_SPACE[part]:
        return act
    return lambda scene: scene.received - act(_in_other_space(scene))


def _in_other_space(scene: AttackContext) -> AttackContext:
    return replace(
        scene,
        own=scene.received - scene.own,
        honest=scene.received - scene.honest,
        past=tuple(model - sent for model, sent in zip(scene.models, scene.past, strict=True)),
    )


def sendable(row: Row) -> Row:
    """Return a vector clamped to float32's range; everything else is a fault of the protocol.

    >>> sendable(np.array([1e40, -np.inf, 2.0])).tolist()
    [3e+38, -3e+38, 2.0]
    """
    return np.clip(np.nan_to_num(row, nan=0.0, posinf=LARGEST, neginf=-LARGEST), -LARGEST, LARGEST)
