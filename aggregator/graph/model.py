"""What a server half may ask of the model between the devices."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from edge_sdk.wire.contract.parameter_layout import ParamSpec

Array = NDArray[Any]


class GraphModel(Protocol):
    """A function of all stations' activations, and its pullback. Numpy in, numpy out.

    Every station has a slot on the axis N, and keeps it; N is always ``capacity``. A slot that no
    station holds is absent: what stands there is never read, and its results are zero. A station
    that merely missed a deadline still holds its slot: the caller puts its last activations, or
    zeros, there, and a zero gradient.

    Nothing is remembered between two calls, and the same arguments give the same bits: parameters
    and what an optimiser knows of them are the caller's to keep. B is any number of examples,
    which do not see each other.

    Attributes:
        spec: How the parameters lie in the vector ``p``, ``(P,)``; all of them belong to the
            server and none is ever sent.
        capacity: Slots.
    """

    @property
    def spec(self) -> ParamSpec:
        """The layout of ``p``."""

    @property
    def capacity(self) -> int:
        """How many stations there can be."""

    def init(self, seed: int) -> Array:
        """Draw first parameters ``(P,)``; the same seed draws the same."""

    def forward(self, p: Array, h: Array, present: Array) -> Array:
        """Compute what goes to the decoders.

        Args:
            p: Parameters, ``(P,)``.
            h: Activations, ``(B, N, F, L)``.
            present: Which slots a station holds, ``(N,)`` of bool.

        Returns:
            ``z``, ``(B, N, F, L)`` of the model's own type; zero where absent.
        """

    def pullback(self, p: Array, h: Array, present: Array, gz: Array) -> tuple[Array, Array]:
        """Carry the decoders' gradients back through ``forward(p, h, present)``, run anew.

        Args:
            p: Parameters, ``(P,)``.
            h: Activations, ``(B, N, F, L)``.
            present: Which slots a station holds, ``(N,)`` of bool.
            gz: The gradient of the sum of all stations' losses in z, ``(B, N, F, L)``; what stands
                in an absent slot is not read.

        Returns:
            The gradient of that sum in ``h``, ``(B, N, F, L)``, zero where absent, and in ``p``,
            ``(P,)``; both summed over the batch as ``gz`` is, with no further mean.
        """
