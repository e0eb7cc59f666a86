"""The graph model between the devices: its interface, and the smallest one, diffusion over the graph."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from aggregator.extensions.papers.graph.stations import Matrix, chebyshev_of_present
from edge_sdk.protocol.contract.parameter_layout import ParamSpec

Array = NDArray[Any]


class GraphModel(Protocol):
    """A function of all stations' activations, and its pullback. Numpy in, numpy out.

    Every station has a slot on the axis N, and keeps it; N is always ``capacity``. A slot that no
    station holds is absent: its content is never read, and its results are zero. A station that
    merely missed a deadline still holds its slot: the caller puts its last activations, or zeros,
    there, and a zero gradient.

    Nothing is kept between two calls, and the same arguments give the same bits: the caller keeps
    the parameters and their optimiser's state. B is any number of examples, which are independent.

    Attributes:
        spec: Layout of the parameters in the vector ``p``, ``(P,)``; all of them belong to the
            server and none is ever sent.
        capacity: Number of slots.
    """

    @property
    def spec(self) -> ParamSpec:
        """Return the layout of ``p``."""

    @property
    def capacity(self) -> int:
        """Return the largest number of stations."""

    def init(self, seed: int) -> Array:
        """Return initial parameters ``(P,)``; the same seed gives the same."""

    def forward(self, p: Array, h: Array, present: Array) -> Array:
        """Return the decoders' input.

        Args:
            p: Parameters, ``(P,)``.
            h: Activations, ``(B, N, F, L)``.
            present: Mask of the slots that a station holds, ``(N,)`` of bool.

        Returns:
            ``z``, ``(B, N, F, L)`` of the model's own type; zero where absent.
        """

    def pullback(self, p: Array, h: Array, present: Array, gz: Array) -> tuple[Array, Array]:
        """Return the gradients through ``forward(p, h, present)``, which is computed again.

        Args:
            p: Parameters, ``(P,)``.
            h: Activations, ``(B, N, F, L)``.
            present: Mask of the slots that a station holds, ``(N,)`` of bool.
            gz: Gradient of the sum of all stations' losses in z, ``(B, N, F, L)``; an absent
                slot is not read.

        Returns:
            The gradient of that sum in ``h``, ``(B, N, F, L)``, zero where absent, and in ``p``,
            ``(P,)``; both summed over the batch as ``gz`` is, with no further mean.
        """


@dataclass(frozen=True)
class Diffusion:
    """``z = tanh(sum_k theta_k * T_k h)`` with ``theta (K, F)``, in numpy alone.

    It has no attention and mixes no features. It runs on a machine without torch, and the
    protocol's tests use it.

    >>> model = Diffusion(np.array([[0.0, 1.0], [1.0, 0.0]]), features=1, order=2)
    >>> h = np.array([1.0, 2.0]).reshape(1, 2, 1, 1)
    >>> both, one = np.array([True, True]), np.array([True, False])
    >>> p = np.array([0.5, 0.25])
    >>> np.arctanh(model.forward(p, h, both)).ravel().round(9).tolist()
    [0.0, 0.75]
    >>> np.arctanh(model.forward(p, h, one)).ravel().round(9).tolist()  # alone: L is scaled to 0
    [0.5, 0.0]
    """

    adjacent: Matrix  # 0/1, ``(N, N)``, symmetric, zero diagonal
    features: int
    # K, number of polynomials; the output of a station depends on those K - 1 edges away
    order: int = 3

    @property
    def capacity(self) -> int:
        return len(self.adjacent)

    @cached_property
    def spec(self) -> ParamSpec:
        return ParamSpec.of([("theta", (self.order, self.features))])

    def init(self, seed: int) -> Array:
        """Return Xavier-uniform weights, float64."""
        draw = np.random.Generator(np.random.Philox(seed))
        reach = np.sqrt(6.0 / (self.order + self.features))
        return draw.uniform(-reach, reach, self.spec.size)

    def forward(self, p: Array, h: Array, present: Array) -> Array:
        return np.tanh(self._sum(p, self._spread(h, present)))

    def pullback(self, p: Array, h: Array, present: Array, gz: Array) -> tuple[Array, Array]:
        """Return the gradients; see ``GraphModel``."""
        spread, theta = self._spread(h, present), self._theta(p)
        inner = np.where(present[:, None, None], gz, 0.0) * (1 - np.tanh(self._sum(p, spread)) ** 2)
        terms = chebyshev_of_present(self.adjacent, present, self.order)
        gh = np.einsum("kmn,bmfl,kf->bnfl", terms, inner, theta, optimize=True)
        return gh, np.einsum("kbnfl,bnfl->kf", spread, inner, optimize=True).ravel()

    def _theta(self, p: Array) -> Array:
        return p.reshape(self.order, self.features)

    def _spread(self, h: Array, present: Array) -> Array:
        masked = np.where(present[:, None, None], h, 0.0).astype(np.float64)
        terms = chebyshev_of_present(self.adjacent, present, self.order)
        found: Array = np.einsum("kmn,bnfl->kbmfl", terms, masked, optimize=True)
        return found

    def _sum(self, p: Array, spread: Array) -> Array:
        found: Array = np.einsum("kbnfl,kf->bnfl", spread, self._theta(p), optimize=True)
        return found
