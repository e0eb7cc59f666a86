"""Reproducible Gaussian noise: a random stream keyed with a secret from the operating system."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

SECRET_BYTES = 32


def normal(secret: bytes, number: int, size: int) -> NDArray[np.float64]:
    """Return the ``number``-th draw of ``size`` standard normal numbers under a secret.

    SHAKE-256 of secret and number, made normal by Box and Muller in pairs. Without the secret the
    noise is unpredictable; with it (it is in the saved state) the same bits are drawn again, so
    that a journal that is replayed gives the same model.

    Args:
        secret: ``SECRET_BYTES`` bytes of ``os.urandom``, kept with the state.
        number: Number of the draw; never the same twice for different purposes.

    >>> first, again = (normal(bytes(32), 7, 3) for _ in range(2))
    >>> bool((first == again).all()), bool((first == normal(bytes(32), 8, 3)).any())
    (True, False)
    """
    pairs = (size + 1) // 2
    text = b"gridfed/1/noise\0" + secret + number.to_bytes(8, "big")
    raw = np.frombuffer(hashlib.shake_256(text).digest(16 * pairs), ">u8")
    uniform = ((raw >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53  # in (0, 1)
    radius = np.sqrt(-2.0 * np.log(uniform[:pairs]))
    angle = 2.0 * np.pi * uniform[pairs:]
    both = np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))
    return both[:size]
