"""Check P-256 public keys and ECDSA signatures in the form in which they are exchanged.

A public key is a compressed point (SEC 1, section 2.3.3): 0x02 or 0x03 by the parity of y, then x, 33
bytes. A signature is r || s, each 32 bytes, most significant byte first. If (r, s) is valid, (r, n - s) is
valid too; only the smaller s counts here, so a second signature cannot be made out of one.

The curve has prime order: no public key has small order.
"""

from __future__ import annotations

from typing import Final

PUBLIC_SIZE: Final = 33
SIGNATURE_SIZE: Final = 64

_P: Final = 2**256 - 2**224 + 2**192 + 2**96 - 1
_B: Final = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Order n of the curve's group (SEC 2, section 2.4.2)."""


def weakness(public: bytes) -> str:
    """Return the reason why 33 bytes are no public key; empty if they are one.

    >>> weakness(bytes.fromhex("036b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296"))
    ''
    >>> weakness(bytes(33)), weakness(bytes([2]) + bytes([255]) * 32)
    ('is not a compressed point', 'is not the canonical encoding of a point')
    """
    if len(public) != PUBLIC_SIZE or public[0] not in (2, 3):
        return "is not a compressed point"
    x = int.from_bytes(public[1:], "big")
    if x >= _P:
        return "is not the canonical encoding of a point"
    square = (x * x * x - 3 * x + _B) % _P  # never 0: no point has order 2
    return "" if pow(square, (_P - 1) // 2, _P) == 1 else "is not a point of P-256"


def is_canonical(signature: bytes) -> bool:
    """Return whether a signature has 64 bytes, r and s in their range, and the smaller s.

    >>> half = (ORDER // 2).to_bytes(32, "big")
    >>> is_canonical(half + half), is_canonical(half + (ORDER // 2 + 1).to_bytes(32, "big"))
    (True, False)
    """
    r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
    return len(signature) == SIGNATURE_SIZE and 0 < r < ORDER and 0 < s <= ORDER // 2


def signature_of(r: int, s: int) -> bytes:
    """Return the canonical form of a signature: r || s with the smaller s.

    >>> signature_of(1, ORDER - 2) == signature_of(1, 2)
    True
    """
    return r.to_bytes(32, "big") + min(s, ORDER - s).to_bytes(32, "big")
