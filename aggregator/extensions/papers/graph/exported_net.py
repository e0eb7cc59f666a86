"""Host an exported graph model: a file of two graphs, run without torch.

``forward`` gives z, and ``pullback`` the gradients in h and in every layer. Each takes ``h (B, N, F, L)``,
``there (N,)`` (1 where a station is present), the Chebyshev polynomials ``terms (K, N, N)`` and the
layers by name; ``pullback`` also ``gz``. Numbers of stations, features and steps are open.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from aggregator.extensions.papers.graph.model import Array
from aggregator.extensions.papers.graph.stations import Matrix, chebyshev_of_present
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from edge_sdk.runtime import ENGINES, Graph, engine_name

FORWARD, PULLBACK, LAYOUT = "forward.onnx", "pullback.onnx", "net.json"


class ExportedNetError(ValueError):
    """An error: a file that is no exported graph model."""


@dataclass(frozen=True, slots=True)
class NetOptions:
    """The options of ``[run.graph]`` that an exported net depends on."""

    kind: str = "pfgl"
    blocks: int = 2
    order: int = 3
    residual_ln: bool = False
    astgcn_order: bool = False

    @property
    def name(self) -> str:
        """Return the name of the file.

        >>> NetOptions().name, NetOptions("conv2d").name, NetOptions(astgcn_order=True).name
        ('pfgl-2-3', 'conv2d-2', 'pfgl-2-3-astgcn')
        """
        if self.kind != "pfgl":
            return f"{self.kind}-{self.blocks}"
        variant = "-residual" * self.residual_ln + "-astgcn" * self.astgcn_order
        return f"pfgl-{self.blocks}-{self.order}{variant}"

    @property
    def shipped(self) -> bytes | None:
        """Return the file that is installed with the package; None if there is none."""
        path = files("aggregator.extensions.papers.graph") / "shipped" / f"{self.name}.zip"
        return path.read_bytes() if path.is_file() else None


@dataclass(frozen=True)
class ExportedNet:
    """An exported net: its graphs, loaded on first use, and the shapes of its layers."""

    options: NetOptions
    layers: tuple[tuple[str, tuple[str, ...]], ...]  # sizes in N, F, L, or a number
    texts: Mapping[str, bytes] = field(repr=False)

    @classmethod
    def read(cls, data: bytes) -> ExportedNet:
        """Read a file; raise ExportedNetError if it is not one."""
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                texts = {name: archive.read(name) for name in (FORWARD, PULLBACK)}
                found = json.loads(archive.read(LAYOUT))
            options = NetOptions(**{one.name: found[one.name] for one in fields(NetOptions)})
            layers = tuple((str(name), tuple(map(str, sizes))) for name, sizes in found["layers"])
        except (zipfile.BadZipFile, KeyError, TypeError, ValueError) as error:
            raise ExportedNetError(f"not an exported graph model: {error}") from error
        return cls(options, layers, texts)

    @cached_property
    def forward(self) -> Graph:
        return _loaded(self.texts[FORWARD])

    @cached_property
    def pullback(self) -> Graph:
        return _loaded(self.texts[PULLBACK])

    def layout(self, stations: int, features: int, steps: int) -> ParamSpec:
        """Return the layout of the parameters for a number of stations and an activation."""
        sizes = {"N": stations, "F": features, "L": steps, "2F": 2 * features}
        return ParamSpec.of(
            [
                (name, tuple(sizes.get(one) or int(one) for one in shape))
                for name, shape in self.layers
            ]
        )


@dataclass(frozen=True)
class HostedGraphModel:
    """An exported net over the activations of all stations, a ``GraphModel``.

    Examples are independent, so they are taken ``block`` at a time; a gradient is the sum over
    blocks. Between two calls nothing is kept but the polynomials of the last graph.
    """

    net: ExportedNet
    adjacent: Matrix  # 0/1, ``(N, N)``, symmetric, zero diagonal; N is the capacity
    features: int
    steps: int
    block: int = 32  # examples at a time
    _last: dict[bytes, dict[str, Array]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def capacity(self) -> int:
        return len(self.adjacent)

    @cached_property
    def spec(self) -> ParamSpec:
        return self.net.layout(self.capacity, self.features, self.steps)

    def init(self, seed: int) -> Array:
        """Return parameters: Xavier's uniform for tables, 0 to ``1/sqrt(length)`` for rows."""
        draw = np.random.Generator(np.random.Philox(seed))
        return np.concatenate([_drawn(one.shape, draw) for one in self.spec.layers])

    def forward(self, p: Array, h: Array, present: Array) -> Array:
        feeds, out = self._feeds(p, present), np.zeros(h.shape, np.float32)
        for rows in self._blocks(h, present):
            (out[rows],) = self.net.forward(h=h[rows], **feeds)
        return out

    def pullback(self, p: Array, h: Array, present: Array, gz: Array) -> tuple[Array, Array]:
        """Return the gradients, one block after the other; see ``GraphModel``."""
        feeds, gh = self._feeds(p, present), np.zeros(h.shape, np.float32)
        total = np.zeros(self.spec.size, np.float32)
        here = np.asarray(present, np.bool_)[:, None, None]
        for rows in self._blocks(h, present):
            upstream = np.where(here, gz[rows], 0.0)
            gx, *slopes = self.net.pullback(h=h[rows], gz=upstream, **feeds)
            gh[rows] = np.where(here, gx, 0.0)
            total += np.concatenate([one.reshape(-1) for one in slopes])
        return gh, total

    def _feeds(self, p: Array, present: NDArray[np.bool_]) -> dict[str, Array]:
        key = np.packbits(present).tobytes()
        if key not in self._last:
            order = max(self.net.options.order, 2)
            terms = chebyshev_of_present(self.adjacent, present, order)
            around = {"there": np.asarray(present, np.float32), "terms": terms.astype(np.float32)}
            self._last.clear()
            self._last[key] = around
        flat = np.asarray(p, np.float32)
        layers = {
            layer.name: flat[layer.offset : layer.offset + layer.size].reshape(layer.shape)
            for layer in self.spec.layers
        }
        return {**self._last[key], **layers}

    def _blocks(self, h: Array, present: Array) -> list[slice]:
        examples = len(h) if present.any() else 0  # without stations the softmax is empty
        return [slice(at, at + self.block) for at in range(0, examples, self.block)]


def _loaded(text: bytes) -> Graph:
    """Load a graph of the operator's own, of any size: no limit of a device's bundle applies."""
    return ENGINES[engine_name()](text, threads=1)


def _drawn(shape: tuple[int, ...], draw: np.random.Generator) -> NDArray[np.float32]:
    size = int(np.prod(shape))
    if len(shape) < 2:
        return draw.uniform(0.0, max(size, 1) ** -0.5, size).astype(np.float32)
    field_size = size // (shape[0] * shape[1])
    reach = np.sqrt(6.0 / ((shape[0] + shape[1]) * field_size))
    return draw.uniform(-reach, reach, size).astype(np.float32)
