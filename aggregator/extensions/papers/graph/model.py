"""Interface of the graph model between the devices, as a server half uses it."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

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
