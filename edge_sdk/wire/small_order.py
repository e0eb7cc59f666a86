"""Detect unsafe Ed25519 public keys: points of small order, and second encodings.

RFC 8032 allows a verifier to accept them, and OpenSSL (so ``cryptography``) does: its check R = sB
- hA compares bytes and does not check A. If A has order 1, hA vanishes, and a signature made
without a private key verifies for every message; for order 8 it does for every eighth message. A
signature by such a key authenticates nobody. An honest key is never one of them: a key made from a
seed has the order of the base point.

A y coordinate of 2**255 - 19 or more is a second encoding of another point. One key would then have
two key ids.
"""

from __future__ import annotations

from typing import Final

_P: Final = 2**255 - 19
_SIGN: Final = 1 << 255

# One of the two y of the points of order 8; the test derives all eight points from the curve.
_Y8: Final = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
_SMALL: Final = frozenset((0, 1, _P - 1, _Y8, _P - _Y8))
"""y of all eight points of small order; the sign bit distinguishes the two of order 4 or 8."""


def weakness(public: bytes) -> str:
    """Return the reason why a raw public key is unsafe; empty if none is known.

    >>> weakness(bytes(32))
    'is a point of small order: it accepts forged signatures'
    >>> weakness(bytes([255]) * 32)
    'is not the canonical encoding of a point'
    >>> weakness(bytes.fromhex("03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"))
    ''
    """
    y = int.from_bytes(public, "little") & ~_SIGN
    if y % _P in _SMALL:
        return "is a point of small order: it accepts forged signatures"
    return "is not the canonical encoding of a point" if y >= _P else ""
