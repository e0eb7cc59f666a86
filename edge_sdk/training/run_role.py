"""Describe what a model runtime is made of: its bundle, its role in a run, its series and start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from edge_sdk.forecasting.series import Series
from edge_sdk.methods.training_context import Graph
from edge_sdk.training.keyed_rng import keyed
from edge_sdk.wire.contract.manifest import Manifest
from edge_sdk.wire.contract.parameter_layout import ParamSpec, Vector


class RunnableBundle(Protocol):
    """The interface of a verified bundle (``edge_sdk.bundle`` has the real one)."""

    @property
    def manifest(self) -> Manifest:
        """Its manifest."""

    @property
    def initial(self) -> Vector:
        """Its initial parameter vector."""

    @property
    def graphs(self) -> Mapping[str, Graph]:
        """Its functions by name, loaded."""

    @property
    def digest(self) -> bytes:
        """SHA-256 of its archive; identifies it in announcements."""


@dataclass(frozen=True, slots=True)
class RunRole:
    """The role of this device in a run: run number, method and shared layers."""

    run: int
    method: str
    shared: tuple[str, ...]


def series_for(manifest: Manifest, keep: int) -> Series:
    """Create an empty series on a bundle's grid, with the streams that it reads."""
    return Series(manifest.window.step_seconds, manifest.streams, capacity=keep)


def own_start(initial: Vector, spec: ParamSpec, device: str) -> Vector:
    """Draw new personal layers from the device's id, each with the spread of the bundle's.

    A constant layer (a bias of zero) is unchanged. Shared layers are the bundle's.

    Example:
        >>> spec = ParamSpec.of([("body", (2,)), ("head", (3,))], shared=["body"])
        >>> start = np.array([1, 2, 0.5, -0.5, 0.1], np.float32)
        >>> a, b = own_start(start, spec, "meter-1"), own_start(start, spec, "meter-2")
        >>> a[:2], bool((a[2:] == b[2:]).any())
        (array([1., 2.], dtype=float32), False)
    """
    p = initial.copy()
    for layer in spec.layers:
        if layer.name in spec.shared_names:
            continue
        part = slice(layer.offset, layer.offset + layer.size)
        centre, reach = initial[part].mean(), initial[part].std() * np.sqrt(3.0)
        rng = keyed(0, device, f"start {layer.name}", 0)
        p[part] = centre + reach * rng.uniform(-1.0, 1.0, layer.size)
    return p
