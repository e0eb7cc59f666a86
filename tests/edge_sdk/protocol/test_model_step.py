"""The step between two versions of a model: exact on both ends, and refused where it does not fit."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol import model_step
from edge_sdk.protocol.codec import decode, encode, pack_tensor, unpack_tensor
from edge_sdk.protocol.envelope import digest, unproved
from edge_sdk.protocol.messages import ContentBody, ModelMessage

pytestmark = pytest.mark.extension  # the encoding of steps

VECTORS = Path(__file__).parents[2] / "vectors"
INDEX = json.loads((VECTORS / "index.json").read_text())
MANIFEST = decode(ModelMessage, unproved((VECTORS / "model-step.bin").read_bytes()))
BODY = (VECTORS / "body-step.bin").read_bytes()
BASE = np.array(INDEX["step"]["base"], np.float32)


def reason(call, *args):
    with pytest.raises(Refused) as refused:
        call(*args)
    return refused.value.reason


def test_the_golden_step_gives_the_golden_model():
    w = model_step.applied(MANIFEST, decode(ContentBody, BODY), BASE)
    assert w.tolist() == INDEX["step"]["model"]
    assert w.dtype == np.float32


floats = st.floats(-(2.0**100), 2.0**100, width=32)
vectors = hnp.arrays(np.float32, st.integers(1, 200), elements=floats)


@given(vectors, st.integers(0, 2**32 - 1))
def test_each_scalar_is_one_sum_in_float64_rounded_once(base, seed):
    draws = np.random.default_rng(seed)
    blob = pack_tensor(draws.normal(0, draws.choice([1e-6, 1.0, 1e6]), len(base)), "q8")
    moved = unpack_tensor(blob, "q8", len(base))
    singly = [np.float32(float(x) + float(y)) for x, y in zip(base, moved, strict=True)]
    assert model_step.stepped(base, blob).tolist() == [float(x) for x in singly]


@pytest.mark.parametrize(
    "changed",
    [
        {"run": 8},
        {"version": 40},
        {"part": "shared"},
        {"spec": bytes(16)},
        {"enc": "q4"},
    ],
)
def test_a_body_that_is_not_the_announced_step_is_malformed(changed):
    content = replace(decode(ContentBody, BODY), **changed)
    assert reason(model_step.applied, MANIFEST, content, BASE) is Reason.MALFORMED


def test_another_version_before_is_a_bad_digest():
    content = decode(ContentBody, BODY)
    other = np.nextafter(BASE, np.float32(9))
    assert reason(model_step.applied, MANIFEST, content, other) is Reason.BAD_DIGEST


def test_a_result_beyond_float32_is_refused():
    blob = pack_tensor(np.array([8e6, 0.0]), "q8")
    content = replace(decode(ContentBody, BODY), blob=blob)
    base = np.array([3.4028235e38, 0.0], np.float32)
    assert reason(model_step.applied, MANIFEST, content, base) is Reason.BAD_DIGEST
    content = replace(content, blob=np.float16(np.inf).tobytes() + b"\x01\x01")
    assert reason(model_step.applied, MANIFEST, content, base) is Reason.NOT_FINITE


@pytest.mark.parametrize(
    "changed",
    [{"step": None}, {"step_size": None}, {"deltas": ()}, {"deltas": ((41, 1),)}],
)
def test_a_manifest_without_a_whole_announcement_has_no_step(changed):
    assert model_step.step_from(MANIFEST) == 40
    assert model_step.step_from(replace(MANIFEST, **changed)) is None


def test_damaged_bodies_are_refused_or_give_the_announced_model():
    """Whatever the bytes, a device has the model that was announced, or none."""
    rng = random.Random(46)
    refused = 0
    for _ in range(5_000):
        body = bytearray(BODY)
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = rng.randrange(len(body))
            match rng.randrange(3):
                case 0:
                    body[at] ^= 1 << rng.randrange(8)
                case 1:
                    del body[at : at + rng.randrange(1, 4)]
                    body += b"" if body else b"\x00"
                case _:
                    body[at:at] = rng.randbytes(rng.randrange(1, 4))
        try:
            w = model_step.applied(MANIFEST, decode(ContentBody, bytes(body)), BASE)
        except Refused:
            refused += 1
        else:
            whole = ContentBody(7, 41, "shared", MANIFEST.spec, "f4", w.tobytes())
            assert digest(encode(whole)) == MANIFEST.digest
    assert refused > 4_500
