"""Accelerators that torch can use."""

from __future__ import annotations

import torch


def cuda_devices() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0
