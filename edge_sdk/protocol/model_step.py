"""The step from one version of the common model to the next, in eight bits a scalar.

The aggregator adopts what the step gives, so that a device with the last version has the model of
the aggregator to the bit: both compute ``stepped``, and every operation in it is a single rounding
of IEEE 754 on each scalar by itself.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol.codec import ENCODINGS, encode, pack_tensor, unpack_tensor
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.protocol.envelope import digest
from edge_sdk.protocol.messages import ContentBody, ModelMessage

STEP_ENCODING: Final = "q8"
STEP_PART: Final = "step"
MODEL_PART: Final = "shared"


def stepped(base: Vector, blob: bytes) -> Vector:
    """Return the model that a step gives.

    Args:
        base: The version before, float32, shape ``(P,)``.
        blob: The step in ``q8``.

    Returns:
        ``base`` plus the decoded step, added in float64 and rounded to float32; shape ``(P,)``.

    """
    moved = np.asarray(base, np.float64) + unpack_tensor(blob, STEP_ENCODING, len(base))
    with np.errstate(over="ignore"):
        return moved.astype(np.float32)


def model_body(*, run: int, version: int, spec: bytes, w: Vector) -> bytes:
    """Return the content body of a whole model, whose digest a manifest announces.

    Raises:
        Refused: NOT_FINITE.
    """
    blob = pack_tensor(w, "f4")
    return encode(ContentBody(run, version, MODEL_PART, spec, "f4", blob))


def step_body(*, run: int, version: int, spec: bytes, blob: bytes) -> bytes:
    return encode(ContentBody(run, version, STEP_PART, spec, STEP_ENCODING, blob))


def step_from(manifest: ModelMessage) -> int | None:
    """Return the version from which a manifest announces a step; None without one.

    A manifest that announces one incompletely, or from a version that is not older, has none, and
    neither has any where the encoding of steps is not installed.
    """
    if STEP_ENCODING not in ENCODINGS:
        return None
    if manifest.step is None or manifest.step_size is None or not manifest.deltas:
        return None
    base, _ = manifest.deltas[0]
    return base if base < manifest.version else None


def applied(manifest: ModelMessage, content: ContentBody, base: Vector) -> Vector:
    """Return the model of a manifest from the body of its step and the version before.

    Raises:
        Refused: MALFORMED for a body that is not the announced step; as ``stepped``; BAD_DIGEST if
            the result is not the announced model, because ``base`` is not what it was made from.
    """
    found = (content.run, content.version, content.part, content.spec, content.enc)
    if found != (manifest.run, manifest.version, STEP_PART, manifest.spec, STEP_ENCODING):
        raise Refused(Reason.MALFORMED, "the content is not the step of its manifest")
    w = stepped(base, content.blob)
    body = model_body(run=manifest.run, version=manifest.version, spec=manifest.spec, w=w)
    if digest(body) != manifest.digest:
        raise Refused(Reason.BAD_DIGEST, "the step does not give the announced model")
    return w
