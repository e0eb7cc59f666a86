"""Distinguish the kinds of public keys of devices by their size.

A device's identity key is an Ed25519 key (32 bytes) or a P-256 key (33 bytes, a compressed point). Its
signatures have 64 bytes either way. The kind belongs to the enrolled key; no message names it.

A public key is a compressed point (SEC 1, section 2.3.3): 0x02 or 0x03 by the parity of y, then x, 33
bytes. A signature is r || s, each 32 bytes, most significant byte first. If (r, s) is valid, (r, n - s) is
valid too; only the smaller s counts here, so a second signature cannot be made out of one.

The curve has prime order: no public key has small order.

RFC 8032 allows a verifier to accept them, and OpenSSL (so ``cryptography``) does: its check R = sB
- hA compares bytes and does not check A. If A has order 1, hA vanishes, and a signature made
without a private key verifies for every message; for order 8 it does for every eighth message. A
signature by such a key authenticates no signer. An honest key is never one of them: a key made from a
seed has the order of the base point.

A y coordinate of 2**255 - 19 or more is a second encoding of another point. One key would then have
two key ids.
"""

from __future__ import annotations

from typing import Final, Literal

# --- P-256

P256_SIZE: Final = 33
P256_SIGNATURE_SIZE: Final = 64

_P256: Final = 2**256 - 2**224 + 2**192 + 2**96 - 1
_B: Final = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
P256_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Order n of the curve's group (SEC 2, section 2.4.2)."""


def p256_weakness(public: bytes) -> str:
    """Return the reason why 33 bytes are no public key; empty if they are one.

    >>> p256_weakness(bytes.fromhex("036b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296"))
    ''
    >>> p256_weakness(bytes(33)), p256_weakness(bytes([2]) + bytes([255]) * 32)
    ('is not a compressed point', 'is not the canonical encoding of a point')
    """
    if len(public) != P256_SIZE or public[0] not in (2, 3):
        return "is not a compressed point"
    x = int.from_bytes(public[1:], "big")
    if x >= _P256:
        return "is not the canonical encoding of a point"
    square = (x * x * x - 3 * x + _B) % _P256  # never 0: no point has order 2
    return "" if pow(square, (_P256 - 1) // 2, _P256) == 1 else "is not a point of P-256"


def is_canonical_p256(signature: bytes) -> bool:
    """Return whether a signature has 64 bytes, r and s in their range, and the smaller s.

    >>> half = (P256_ORDER // 2).to_bytes(32, "big")
    >>> is_canonical_p256(half + half), is_canonical_p256(half + (P256_ORDER // 2 + 1).to_bytes(32, "big"))
    (True, False)
    """
    r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
    return len(signature) == P256_SIGNATURE_SIZE and 0 < r < P256_ORDER and 0 < s <= P256_ORDER // 2


def p256_signature(r: int, s: int) -> bytes:
    """Return the canonical form of a signature: r || s with the smaller s.

    >>> p256_signature(1, P256_ORDER - 2) == p256_signature(1, 2)
    True
    """
    return r.to_bytes(32, "big") + min(s, P256_ORDER - s).to_bytes(32, "big")


# --- Ed25519

_P: Final = 2**255 - 19
_SIGN: Final = 1 << 255

# One of the two y of the points of order 8; the test derives all eight points from the curve.
_Y8: Final = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
_SMALL: Final = frozenset((0, 1, _P - 1, _Y8, _P - _Y8))
"""y of all eight points of small order; the sign bit distinguishes the two of order 4 or 8."""


def ed25519_weakness(public: bytes) -> str:
    """Return the reason why a raw public key is unsafe; empty if none is known.

    >>> ed25519_weakness(bytes(32))
    'is a point of small order: it accepts forged signatures'
    >>> ed25519_weakness(bytes([255]) * 32)
    'is not the canonical encoding of a point'
    >>> ed25519_weakness(bytes.fromhex("03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"))
    ''
    """
    y = int.from_bytes(public, "little") & ~_SIGN
    if y % _P in _SMALL:
        return "is a point of small order: it accepts forged signatures"
    return "is not the canonical encoding of a point" if y >= _P else ""


# --- either kind

KeyKind = Literal["ed25519", "p256"]
"""Signature algorithm of a device's identity key: Ed25519, or ECDSA on P-256 with SHA-256."""

SIZES: Final[dict[int, KeyKind]] = {32: "ed25519", P256_SIZE: "p256"}
"""Kind by size of the raw public key."""


def kind_of(public: bytes) -> KeyKind | None:
    """Return the kind of a raw public key; None for another size.

    >>> kind_of(bytes(32)), kind_of(bytes(33)), kind_of(b"")
    ('ed25519', 'p256', None)
    """
    return SIZES.get(len(public))


def weakness(public: bytes) -> str:
    """Return the reason why a device's raw public key is not to be trusted; empty if none is known.

    >>> weakness(bytes(31)), weakness(bytes(32))[:27], weakness(bytes(33))
    ('has 31 bytes, expected 32 or 33', 'is a point of small order: ', 'is not a compressed point')
    """
    kind = kind_of(public)
    if kind is None:
        return f"has {len(public)} bytes, expected 32 or 33"
    return ed25519_weakness(public) if kind == "ed25519" else p256_weakness(public)
