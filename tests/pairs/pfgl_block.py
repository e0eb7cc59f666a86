"""PFGL's spatio-temporal block in numpy, for a server without torch; gradients by the complex step."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from aggregator.extensions.papers.graph.stations import chebyshev_of_present
from edge_sdk.protocol.contract.parameter_layout import ParamSpec

TINY = 1e-30


def gradients(function, *arrays):
    """Return the gradients of a real function in its arrays: its imaginary parts at i times TINY.

    There is no difference of near numbers, so they are exact to rounding.
    """
    found = []
    for at, array in enumerate(arrays):
        slope = np.empty(array.shape)
        for place in np.ndindex(array.shape):
            moved = array.astype(complex)
            moved[place] += 1j * TINY
            slope[place] = function(*arrays[:at], moved, *arrays[at + 1 :]).imag / TINY
        found.append(slope)
    return found


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x, axis):
    raised = np.exp(x - x.real.max(axis, keepdims=True))
    return raised / raised.sum(axis, keepdims=True)


def relu(x):
    return np.where(x.real > 0, x, 0)


@dataclass(frozen=True)
class PfglBlock:
    """``ReLU(conv_t(ReLU(sum_k (T_k * S) (H E) Theta_k)))``: equations (8) to (12), as a ``GraphModel``.

    The numbers of the layers are in the order of ``SpatioTemporalBlock``; all slots must be held.
    """

    adjacent: np.ndarray
    features: int
    steps: int
    order: int = 3

    @property
    def capacity(self):
        return len(self.adjacent)

    @cached_property
    def spec(self):
        n, f, s = self.capacity, self.features, self.steps
        shapes = {
            "spatial.w1": (s,), "spatial.w2": (f, s), "spatial.w3": (f,),
            "spatial.v": (n, n), "spatial.b": (n, n),
            "temporal.u1": (n,), "temporal.u2": (f, n), "temporal.u3": (f,),
            "temporal.v": (s, s), "temporal.b": (s, s),
            **{f"theta.{k}": (f, f) for k in range(self.order)},
            "conv.weight": (f, f, 3), "conv.bias": (f,),
        }  # fmt: skip
        return ParamSpec.of(list(shapes.items()))

    def init(self, seed):
        drawn = np.random.default_rng(seed).normal(size=self.spec.size) * 0.5
        return drawn + 0.4  # most of the ReLUs are open

    def apply(self, p, h):
        """Return z of real or complex parameters and activations ``(B, N, F, L)``."""
        ends = np.cumsum([int(np.prod(shape)) for _, shape in self.layers])
        of = {
            name: part.reshape(shape)
            for (name, shape), part in zip(self.layers, np.split(p, ends[:-1]), strict=True)
        }
        over = np.einsum("bnfl,n->blf", h, of["temporal.u1"]) @ of["temporal.u2"]
        product = over @ np.einsum("f,bnfl->bnl", of["temporal.u3"], h)
        weighted = h @ softmax(of["temporal.v"] @ sigmoid(product + of["temporal.b"]), 1)[:, None]
        product = (h @ of["spatial.w1"] @ of["spatial.w2"]) @ np.einsum(
            "f,bnfl->bln", of["spatial.w3"], h
        )
        weights = softmax(of["spatial.v"] @ sigmoid(product + of["spatial.b"]), 2)
        everyone = np.ones(self.capacity, bool)
        terms = chebyshev_of_present(self.adjacent, everyone, self.order)
        mixing = np.stack([of[f"theta.{k}"] for k in range(self.order)])
        spread = relu(np.einsum("kmn,bmn,bnfl,kfg->bmgl", terms, weights, weighted, mixing))
        padded = np.pad(spread, ((0, 0), (0, 0), (0, 0), (1, 1)))
        windows = np.stack([padded[..., t : t + self.steps] for t in range(3)], -1)
        out = np.einsum("bnflt,gft->bngl", windows, of["conv.weight"])
        return relu(out + of["conv.bias"][:, None])

    @property
    def layers(self):
        return [(layer.name, layer.shape) for layer in self.spec.layers]

    def forward(self, p, h, present):
        assert present.all()
        return self.apply(p, h.astype(np.float64))

    def pullback(self, p, h, present, gz):
        assert present.all()
        gp, gh = gradients(
            lambda p, h: np.sum(gz * self.apply(p, h)),
            np.asarray(p, np.float64),
            h.astype(np.float64),
        )
        return gh, gp
