"""How many accelerators torch finds."""

from __future__ import annotations

import torch


def cuda_devices() -> int:
    """Return how many CUDA devices can be used here; 0 where there is none."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0
