"""Distinguish the kinds of public keys of devices by their size.

A device's identity key is an Ed25519 key (32 bytes) or a P-256 key (33 bytes, a compressed point). Its
signatures have 64 bytes either way. The kind belongs to the enrolled key; no message names it.
"""

from __future__ import annotations

from typing import Final, Literal

from edge_sdk.wire import p256, small_order

KeyKind = Literal["ed25519", "p256"]
"""Signature algorithm of a device's identity key: Ed25519, or ECDSA on P-256 with SHA-256."""

SIZES: Final[dict[int, KeyKind]] = {32: "ed25519", p256.PUBLIC_SIZE: "p256"}
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
    return small_order.weakness(public) if kind == "ed25519" else p256.weakness(public)
