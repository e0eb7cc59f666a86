"""Dense nets in numpy: loss, gradient and curvature of small models, for synthetic experiments.

They stand where a bundle's graphs stand: ``gradient(p, x, y)`` and ``hvp(p, x, y, v)`` over one
flat vector. Inputs and targets come in a batch's shapes ``(B, 1, inputs)`` and ``(B, outputs)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from edge_sdk.methods.training_context import Graph
from edge_sdk.protocol.contract.parameter_layout import ParamSpec, Vector

Floats = NDArray[np.float64]
Bend = Callable[[Floats], tuple[Floats, Floats, Floats]]
"""Activation function of a unit, with its first and second derivative."""


def _sigmoid(z: Floats) -> tuple[Floats, Floats, Floats]:
    s = 1.0 / (1.0 + np.exp(-z))
    return s, s * (1 - s), s * (1 - s) * (1 - 2 * s)


def _tanh(z: Floats) -> tuple[Floats, Floats, Floats]:
    t = np.tanh(z)
    return t, 1 - t * t, -2 * t * (1 - t * t)


BENDS: Final[dict[str, Bend]] = {"sigmoid": _sigmoid, "tanh": _tanh}


@dataclass(frozen=True, slots=True)
class Net:
    """A dense net whose last layer is linear; the loss is the mean squared error.

    >>> Net((8, 16, 16, 8), biases=False).spec.size
    512
    """

    widths: tuple[int, ...]  # from inputs to outputs
    bend: Literal["sigmoid", "tanh"] = "sigmoid"  # of the layers between
    biases: bool = True  # whether every layer adds one

    @property
    def spec(self) -> ParamSpec:
        shapes = []
        for i, (into, out) in enumerate(zip(self.widths, self.widths[1:], strict=False)):
            shapes.append((f"layer{i}.weight", (into, out)))
            if self.biases:
                shapes.append((f"layer{i}.bias", (1, out)))
        return ParamSpec.of(shapes)

    @property
    def graphs(self) -> dict[str, Graph]:
        return {"gradient": self.gradient, "hvp": self.hvp}

    def first(self, rng: np.random.Generator) -> Vector:
        """Draw a vector: weights of variance one over their inputs, biases of zero."""
        parts = [
            rng.normal(0, 1 / np.sqrt(layer.shape[0]), layer.size)
            if layer.name.endswith("weight")
            else np.zeros(layer.size)
            for layer in self.spec.layers
        ]
        return np.concatenate(parts).astype(np.float32)

    def predict(self, p: Vector, x: NDArray[Any]) -> Floats:
        """Return the outputs ``(B, outputs)`` of inputs ``(B, 1, inputs)``."""
        *_, (_, z, _) = self._forward(p, x)
        return z

    def loss(self, p: Vector, x: NDArray[Any], y: NDArray[Any]) -> float:
        return float(np.mean((self.predict(p, x) - y) ** 2))

    def gradient(self, p: Vector, x: Floats, y: Floats) -> tuple[NDArray[np.float32], Vector]:
        """Return the loss and its gradient."""
        run = list(self._forward(p, x))
        error = run[-1][1] - y
        grads, back = [], 2.0 * error / error.size
        for a, z, (w, _) in reversed(run):
            if z is not run[-1][1]:
                back = back * BENDS[self.bend](z)[1]
            grads += [back.sum(0).ravel(), (a.T @ back).ravel()] if self.biases else []
            grads += [] if self.biases else [(a.T @ back).ravel()]
            back = back @ w.T
        flat = np.concatenate(grads[::-1]).astype(np.float32)
        return np.asarray(np.mean(error**2), np.float32), flat

    def hvp(self, p: Vector, x: Floats, y: Floats, v: Vector) -> tuple[Vector]:
        """Return the product of the loss's second derivatives with a vector (Pearlmutter 1994)."""
        run, turned = list(self._forward(p, x)), []
        ra = np.zeros_like(run[0][0])
        for (a, z, (w, _)), (vw, vb) in zip(run, self._layers(v), strict=True):
            rz = ra @ w + a @ vw + vb
            turned.append((ra, rz, vw))
            ra = BENDS[self.bend](z)[1] * rz
        error = run[-1][1] - y
        back, rback = 2.0 * error / error.size, 2.0 * turned[-1][1] / error.size
        out: list[Floats] = []
        for number in reversed(range(len(run))):
            (a, z, (w, _)), (ra, rz, vw) = run[number], turned[number]
            if number < len(run) - 1:
                _, slope, curve = BENDS[self.bend](z)
                back, rback = back * slope, rback * slope + back * curve * rz
            weight = (ra.T @ back + a.T @ rback).ravel()
            out += [rback.sum(0).ravel(), weight] if self.biases else [weight]
            back, rback = back @ w.T, rback @ w.T + back @ vw.T
        return (np.concatenate(out[::-1]).astype(np.float32),)

    def _layers(self, p: Vector) -> Iterator[tuple[Floats, Floats | float]]:
        at, wide = 0, p.astype(np.float64)
        for into, out in zip(self.widths, self.widths[1:], strict=False):
            w = wide[at : at + into * out].reshape(into, out)
            at += into * out
            b = wide[at : at + out] if self.biases else 0.0
            at += out if self.biases else 0
            yield w, b

    def _forward(
        self, p: Vector, x: NDArray[Any]
    ) -> Iterator[tuple[Floats, Floats, tuple[Floats, Floats | float]]]:
        a = np.asarray(x, np.float64).reshape(len(x), -1)
        for w, b in self._layers(p):
            z = a @ w + b
            yield a, z, (w, b)
            a = BENDS[self.bend](z)[0]
