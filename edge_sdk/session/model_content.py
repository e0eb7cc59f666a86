"""Decode the bodies of the common model, and keep the newest version for the step to the next."""

from __future__ import annotations

import numpy as np

from edge_sdk.wire.contract.parameter_layout import Vector
from edge_sdk.wire.errors import Reason, Refused
from edge_sdk.wire.protocol import messages as m
from edge_sdk.wire.protocol.codec import decode, unpack_tensor
from edge_sdk.wire.protocol.model_step import applied, step_from


class NewestModel:
    """The newest version of a run's common model that this device received; in memory only."""

    def __init__(self) -> None:
        """Start without a model."""
        self._held: tuple[int, Vector] | None = None

    def clear(self) -> None:
        """Forget the model: another run began, or a step did not fit it."""
        self._held = None

    def keep(self, version: int, w: Vector) -> None:
        """Keep a version, instead of the one before."""
        self._held = version, w

    def has_base(self, manifest: m.ModelMessage) -> bool:
        """Return True if the step that a manifest announces begins at the version kept."""
        return self._held is not None and self._held[0] == step_from(manifest)

    def after_step(self, manifest: m.ModelMessage, body: bytes) -> Vector:
        """Return the announced model from the body of its step.

        Raises:
            Refused: As ``model_step.applied``; MALFORMED without the version before.
        """
        if self._held is None or not self.has_base(manifest):
            raise Refused(Reason.MALFORMED, "the version before the step is not here")
        return applied(manifest, decode(m.ContentBody, body), self._held[1])


def whole_model(manifest: m.ModelMessage, body: bytes, size: int) -> Vector:
    """Decode the vector; the digest is verified, so a contradiction is the server's fault.

    Args:
        manifest: Manifest of the model.
        body: The content body, whose digest is the announced one.
        size: Number of scalars.

    Raises:
        Refused: MALFORMED, WRONG_SIZE or NOT_FINITE.
    """
    content = decode(m.ContentBody, body)
    found = (content.run, content.version, content.part, content.spec, content.enc)
    if found != (manifest.run, manifest.version, manifest.part, manifest.spec, manifest.enc):
        raise Refused(Reason.MALFORMED, "the content differs from its manifest")
    return unpack_tensor(content.blob, content.enc, size).astype(np.float32)
