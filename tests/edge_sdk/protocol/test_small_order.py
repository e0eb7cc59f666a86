"""Public keys for which anybody can sign: all of them, at every place where a key enters."""

from __future__ import annotations

import hashlib
import secrets

import pytest

from edge_sdk.app.schema import SchemaError
from edge_sdk.extensions.peers.topology import NeighboursSection, settings_of_section
from edge_sdk.protocol import keys
from edge_sdk.protocol.messages import KeysMessage, TaskMessage
from edge_sdk.protocol.public_key import ed25519_weakness

P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P
L = 2**252 + 27742317777372353535851937790883648493
ONE = (0, 1)


def add(p, q):
    """Add two points of edwards25519 (RFC 8032, section 5.1.4, in affine coordinates)."""
    (x1, y1), (x2, y2) = p, q
    k = D * x1 * x2 * y1 * y2 % P
    x = (x1 * y2 + x2 * y1) * pow(1 + k, -1, P) % P
    return x, (y1 * y2 + x1 * x2) * pow(1 - k, -1, P) % P


def times(n, p):
    out = ONE
    while n:
        out, p, n = (add(out, p) if n & 1 else out), add(p, p), n >> 1
    return out


def decoded(y):
    """Return a point with this y, or None where the curve has none."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    x = x if x * x % P == square else x * pow(2, (P - 1) // 4, P) % P
    return (x, y) if x * x % P == square else None


def small_points():
    """Return the eight points of small order, as multiples of one of order 8."""
    for y in range(2, 50):
        point = decoded(y)
        if point is not None:
            base = times(L, point)
            found = {times(n, base) for n in range(8)}
            if len(found) == 8:
                return sorted(found)
    raise AssertionError


def encodings(x, y):
    """Return every 32 bytes that decode to a point, the canonical ones first."""
    signs = (0, 1) if x == 0 else (x & 1,)  # a lenient decoder takes -0 too
    return [
        (value | sign << 255).to_bytes(32, "little")
        for value in (y, y + P)
        if value < 2**255
        for sign in signs
    ]


SMALL = [raw for point in small_points() for raw in encodings(*point)]
SECOND = [((P + n) | sign << 255).to_bytes(32, "little") for n in range(2, 19) for sign in (0, 1)]


def test_there_are_eight_points_and_fourteen_ways_to_write_them():
    assert len(small_points()) == 8
    assert len(set(SMALL)) == len(SMALL) == 14


@pytest.mark.parametrize("raw", SMALL, ids=bytes.hex)
def test_each_point_of_small_order_is_known_in_each_encoding(raw):
    assert "small order" in ed25519_weakness(raw)


@pytest.mark.parametrize("raw", SECOND, ids=bytes.hex)
def test_each_second_encoding_is_known(raw):
    assert "canonical" in ed25519_weakness(raw)


def test_no_honest_key_is_one_of_them():
    assert not any(ed25519_weakness(keys.from_seed(bytes([n]) * 32).public) for n in range(64))


def forged(public: bytes, data: bytes) -> bytes:
    """Sign for a key of small order without any private key, by trying nonces."""
    base = decoded(4 * pow(5, -1, P) % P)
    base = base if base[0] & 1 == 0 else (P - base[0], base[1])
    point = decoded(int.from_bytes(public, "little") % 2**255 % P)
    for nonce in range(1, 200):
        r = times(nonce, base)
        raw = (r[1] | (r[0] & 1) << 255).to_bytes(32, "little")
        h = int.from_bytes(hashlib.sha512(raw + public + data).digest(), "little") % L
        if times(h % 8, point) == ONE:  # R = sB - hA holds for s = nonce
            return raw + nonce.to_bytes(32, "little")
    raise AssertionError


@pytest.mark.parametrize("point", range(8))
def test_a_signature_that_needs_no_private_key_is_not_believed(point):
    """The library alone believes all eight: the check is ours."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
        Ed25519PublicKey,
    )

    public, data = encodings(*small_points()[point])[0], secrets.token_bytes(8)
    signature = forged(public, data)
    Ed25519PublicKey.from_public_bytes(public).verify(signature, data)  # raises nothing
    assert not keys.verify(public, signature, data)


@pytest.mark.parametrize("raw", [*SMALL, SECOND[0]], ids=bytes.hex)
def test_a_file_or_an_argument_with_such_a_key_is_refused_with_a_sentence(tmp_path, raw):
    file = tmp_path / "root.pub"
    file.write_text(raw.hex())
    for where in (file, raw.hex()):
        with pytest.raises(keys.KeyFileError, match=r"small order|canonical"):
            keys.read_public(where)


@pytest.mark.parametrize("raw", [SMALL[0], SECOND[0]], ids=bytes.hex)
def test_no_message_and_no_section_brings_such_a_key(raw):
    with pytest.raises(ValueError, match=raw.hex()):
        KeysMessage(1, (raw,), (), (0,), (1,), 1)
    with pytest.raises(ValueError, match="keys: "):
        TaskMessage(1, 1, 1, "begin", bytes(16), peers=("b",), keys=(raw,))
    with pytest.raises(SchemaError, match=r"neighbours\.keys\.b"):
        settings_of_section(NeighboursSection(keys={"b": raw.hex()}), "dfl_sgd")
