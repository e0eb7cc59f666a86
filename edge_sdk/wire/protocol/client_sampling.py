"""Decide which devices take part in a round, with the same result on device and server."""

from __future__ import annotations

import hashlib


def takes_part(cohort: bytes, device: str, share: float) -> bool:
    """Return whether 8 bytes of SHA-256(cohort ‖ id), as a fraction of one, lie below the share.

    >>> takes_part(bytes(16), "meter-1", 1.0), takes_part(bytes(16), "meter-1", 0.0)
    (True, False)
    >>> sum(takes_part(bytes(16), f"meter-{i}", 0.25) for i in range(1000))
    240
    """
    drawn = hashlib.sha256(cohort + device.encode()).digest()
    return int.from_bytes(drawn[:8], "big") < share * 2.0**64
