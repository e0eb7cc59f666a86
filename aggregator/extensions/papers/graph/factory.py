"""Build the graph model of ``[run.graph]``: its net, its stations and its block size."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from aggregator.extensions.papers.graph.exported_net import (
    ExportedNet,
    ExportedNetError,
    HostedGraphModel,
    NetOptions,
)
from aggregator.extensions.papers.graph.model import Diffusion, GraphModel
from aggregator.extensions.papers.graph.stations import (
    Matrix,
    Site,
    adjacency,
    distances,
    nearest,
    reached,
)
from aggregator.methods.base.types import BoundGraph
from edge_sdk.app.schema import Between, Length, Matches, SchemaError, build

Station = Annotated[str, Matches(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")]
Few = Annotated[int, Between(1, 16)]
MOST = 4096  # largest number of slots of a dense graph: its tables grow with their square
_NETS = frozenset({"blocks", "dtype", "device", "memory_mb", "engine", "file"})
_EDGES = frozenset({"threshold", "nearest"})
# options of ``[run.graph]`` that have an effect on each kind, beside ``sites`` and ``capacity``
OPTIONS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "pfgl": _NETS | _EDGES | {"order", "attention", "residual_ln", "astgcn_order"},
        "conv2d": _NETS,
        "graphnet": _NETS | _EDGES,
        "diffusion": _EDGES | {"order"},
    }
)


@dataclass(frozen=True, slots=True)
class GraphSection:
    """The model between the devices, for methods that have one."""

    renamed: ClassVar[Mapping[str, str]] = {"memory": "memory_mb", "swapped": "astgcn_order"}

    kind: Literal["pfgl", "conv2d", "graphnet", "diffusion"] = "pfgl"  # architecture of the net
    sites: Path | None = None  # coordinates or edges of the stations; left out: all are neighbours
    threshold: Literal["median"] | Annotated[float, Between(1e-6, 2.1e4)] = "median"  # km
    nearest: Annotated[int, Between(1, MOST)] | None = None  # instead of threshold: how many
    capacity: Annotated[int, Between(1, MOST)] = 64  # largest number of stations
    blocks: Few = 2  # blocks or layers, one after the other
    order: Annotated[int, Between(2, 16)] = 3  # Chebyshev polynomials of pfgl and diffusion
    attention: Literal["full", "local"] = "full"  # pfgl: to all stations, or within order - 1 edges
    residual_ln: bool = False  # pfgl: also a residual path and a LayerNorm, as ASTGCN has
    astgcn_order: bool = False  # pfgl: ASTGCN: convolve h, attend over the weighted steps
    # engine of the net: a file of exported graphs, or torch (pip install 'gridfed[train]')
    engine: Literal["exported", "torch"] = "exported"
    file: Path | None = None  # of export-graph, for a net that is not shipped
    dtype: Literal["float32", "float64"] = "float32"  # precision; torch alone has float64
    device: Annotated[str, Matches(r"cpu|cuda(:\d{1,2})?")] = "cpu"  # cuda: torch alone
    memory_mb: Annotated[int, Between(16, 1_000_000)] = 1024  # MB for the arrays between h and z

    def __post_init__(self) -> None:
        """Refuse options that have no effect, and those that the local form does not have."""
        effective, changed = OPTIONS[self.kind], self._changed()
        for option in sorted(changed - {"kind", "sites", "capacity"} - effective):
            suited = ", ".join(kind for kind, options in OPTIONS.items() if option in options)
            raise ValueError(
                f"{option}: has no effect on kind {self.kind!r}; remove it, or use {suited}"
            )
        for option in sorted(changed & _EDGES) if self.sites is None else ():
            raise ValueError(f"{option}: has no effect without sites; remove it, or name sites")
        if changed >= _EDGES:
            raise ValueError("threshold: has no effect beside nearest; remove one of them")
        if self.net == "local" and self.residual_ln:
            raise ValueError("residual_ln requires full attention")
        if self.file is not None and self.is_torch:
            raise ValueError("file: torch computes this net; remove file, or the option for torch")

    def bound(self, activation: tuple[int, int], folder: Path) -> BoundGraph:
        """Return the graph model of a run (``bind``)."""
        return bind(self, activation, folder)

    def _changed(self) -> frozenset[str]:
        return frozenset(one.name for one in fields(self) if getattr(self, one.name) != one.default)

    @property
    def is_torch(self) -> bool:
        """Return whether torch computes the net: it is asked for, or no export has the option."""
        asked = self.engine == "torch" or self.dtype == "float64" or self.device != "cpu"
        return asked or self.net == "local"

    @property
    def options(self) -> NetOptions:
        return NetOptions(self.kind, self.blocks, self.order, self.residual_ln, self.astgcn_order)

    @property
    def net(self) -> str:
        """Return the name of the net: the kind, or ``local``."""
        return "local" if self.kind == "pfgl" and self.attention == "local" else self.kind


@dataclass(frozen=True, slots=True)
class SitesFile:
    """Content of a sites file: coordinates of stations, or edges, or both.

    Edges take precedence; stations in neither have no neighbours.
    """

    sites: Mapping[Station, Site] = field(default_factory=lambda: MappingProxyType({}))
    edges: tuple[Annotated[tuple[Station, ...], Length(2, 2)], ...] | None = None

    @property
    def stations(self) -> tuple[str, ...]:
        ends = (end for edge in self.edges or () for end in edge)
        return tuple(dict.fromkeys((*self.sites, *ends)))


def bind(section: GraphSection, activation: tuple[int, int], folder: Path = Path()) -> BoundGraph:
    """Return the graph model of a run.

    Args:
        activation: F and L, from the bundle's manifest.
        folder: Folder that a relative ``sites`` is relative to.

    Raises:
        SchemaError: A file that cannot be read, more sites than capacity, or a net without torch.

    >>> seated = bind(GraphSection("diffusion", capacity=3), (16, 32))
    >>> seated.model.capacity, seated.places, seated.model.spec.size
    (3, {}, 48)
    """
    sites = SitesFile() if section.sites is None else read_sites(folder / section.sites)
    stations = sites.stations
    if len(stations) > section.capacity:
        raise SchemaError(
            "run.graph.capacity", f"room for the {len(stations)} stations of sites", "less"
        )
    for option in ("threshold", "nearest") if sites.edges is not None else ():
        if getattr(section, option) not in {None, "median"}:
            raise SchemaError(
                f"run.graph.{option}", f"none: {section.sites} has edges, which take precedence"
            )
    adjacent = np.zeros((section.capacity, section.capacity))
    if section.sites is None:
        adjacent = 1.0 - np.eye(section.capacity)
    else:
        adjacent[: len(stations), : len(stations)] = _neighbours(section, sites)
    places = {station: slot for slot, station in enumerate(stations)}
    return BoundGraph(_model(section, activation, adjacent, folder), activation, places)


def read_sites(path: Path) -> SitesFile:
    """Read ``[sites]`` and ``edges`` from TOML, or a CSV of neighbours; raise SchemaError with the file's name."""
    try:
        text = path.read_text("utf-8")
        table = _rows(text) if path.suffix == ".csv" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise SchemaError("run.graph.sites", f"a readable file of sites: {error}") from error
    found = build(SitesFile, table, where=path.name)
    for edge in found.edges or ():
        if edge[0] == edge[1]:
            raise SchemaError(f"{path.name}.edges", "two different stations", repr(edge[0]))
    return found


def _rows(text: str) -> Mapping[str, Any]:
    r"""Read lines below ``client,latitude,longitude`` or ``client,neighbour``.

    >>> _rows("client,neighbour\na,b\n")
    {'edges': [['a', 'b']]}
    """
    head, *rows = [row for row in csv.reader(text.splitlines()) if row] or [[]]
    if head == ["client", "neighbour"]:
        return {"edges": rows}
    if head != ["client", "latitude", "longitude"]:
        raise ValueError(f"its first line is {','.join(head)!r}")
    places = ((name, float(north), float(east)) for name, north, east in rows)
    return {"sites": {name: {"latitude": a, "longitude": b} for name, a, b in places}}


def _neighbours(section: GraphSection, sites: SitesFile) -> Matrix:
    stations = sites.stations
    out = np.zeros((len(stations), len(stations)))
    if sites.edges is not None:
        at = {station: slot for slot, station in enumerate(stations)}
        for one, other in sites.edges:
            out[at[one], at[other]] = out[at[other], at[one]] = 1.0
        return out
    far = distances(list(sites.sites.values()))
    if section.nearest is not None:
        return nearest(far, section.nearest)
    return adjacency(far, None if section.threshold == "median" else section.threshold)


def _model(
    section: GraphSection, activation: tuple[int, int], adjacent: Matrix, folder: Path
) -> GraphModel:
    features, steps = activation
    if section.kind == "diffusion":
        return Diffusion(adjacent, features, section.order)
    exported = None if section.is_torch else _exported(section, folder)
    if exported is not None:
        block = examples_at_once(section, features, steps, adjacent)
        return HostedGraphModel(exported, adjacent, features, steps, block)
    if find_spec("torch") is None:
        name = section.options.name
        raise SchemaError(
            "run.graph.file",
            f"a file of this net ({name}; `gridfed-aggregator export-graph` writes one where torch "
            "is installed), or torch (pip install 'gridfed[train]')",
            "neither",
        )
    _check_device(section.device)
    return _hosted(section, features, steps, adjacent)


def _exported(section: GraphSection, folder: Path) -> ExportedNet | None:
    """Return the exported net of ``file``, or the shipped one; None if it is not shipped."""
    shipped = section.options.shipped
    try:
        if section.file is None:
            return None if shipped is None else ExportedNet.read(shipped)
        found = ExportedNet.read((folder / section.file).read_bytes())
    except (OSError, ExportedNetError) as error:
        raise SchemaError("run.graph.file", "a file of `export-graph`", str(error)) from error
    if found.options != section.options:
        wanted, name = section.options.name, found.options.name
        raise SchemaError("run.graph.file", f"the net that is configured, {wanted}", name)
    return found


def _check_device(name: str) -> None:
    from aggregator.extensions.papers.graph.nets.torch_adapter import cuda_devices  # noqa: PLC0415 - torch, only here

    kind, _, number = name.partition(":")
    found = cuda_devices() if kind == "cuda" else 0
    if kind == "cuda" and int(number or 0) >= found:
        expected = f"'cpu', for torch finds {found or 'no'} CUDA devices here"
        raise SchemaError("run.graph.device", expected, repr(name))


def _hosted(section: GraphSection, features: int, steps: int, adjacent: Matrix) -> GraphModel:
    from aggregator.extensions.papers.graph.nets.baselines import Conv2d, GraphNet  # noqa: PLC0415 - torch, only where it is used
    from aggregator.extensions.papers.graph.nets.sparse_attention import SparseAttentionNet  # noqa: PLC0415 - as above
    from aggregator.extensions.papers.graph.nets.spatiotemporal import SpatioTemporal  # noqa: PLC0415 - as above
    from aggregator.extensions.papers.graph.nets.torch_adapter import TorchGraphModel  # noqa: PLC0415 - as above

    nets: Mapping[str, Callable[..., Any]] = {
        "pfgl": partial(
            SpatioTemporal,
            section.capacity,
            features,
            steps,
            blocks=section.blocks,
            order=section.order,
            residual_ln=section.residual_ln,
            swapped=section.astgcn_order,
        ),
        "local": partial(
            SparseAttentionNet,
            adjacent,
            features,
            steps,
            blocks=section.blocks,
            order=section.order,
            swapped=section.astgcn_order,
        ),
        "conv2d": partial(Conv2d, features, section.blocks),
        "graphnet": partial(GraphNet, features, section.blocks),
    }
    return TorchGraphModel(
        nets[section.net],
        adjacent,
        order=section.order if section.kind == "pfgl" else 2,
        dtype=section.dtype,
        device=section.device,
        block=examples_at_once(section, features, steps, adjacent),
    )


def examples_at_once(section: GraphSection, features: int, steps: int, adjacent: Matrix) -> int:
    """Return the number of examples that fit into ``memory_mb``, at least one.

    The estimate is twice ``kept``: the backward pass temporarily needs as much again.

    >>> apart = np.zeros((8, 8))
    >>> examples_at_once(GraphSection(memory_mb=100), 64, 32, apart)
    34
    """
    scalar = 8 if section.dtype == "float64" else 4
    each = 2 * scalar * section.blocks * kept(section, features, steps, adjacent)
    return max(1, section.memory_mb * 1_000_000 // each)


def kept(section: GraphSection, features: int, steps: int, adjacent: Matrix) -> int:
    """Return the largest number of scalars of one example that a block or layer keeps for backward.

    ``pfgl``: ``(2 + K) N^2 + (8 + K) N F L``, and with local attention to at most D stations
    ``2 N D (D + L + K) + (8 + K) N F L``; ``conv2d``: ``2 N F L``; ``graphnet``: ``(E + 5 N) F L``
    with E edges, counted in both directions. So memory grows with the square of the stations for
    full attention, and else with their number. An exported ``conv2d`` has its nine shifted inputs
    too, and an exported ``graphnet`` a message for each pair of stations.
    """
    n, flat = len(adjacent), features * steps
    if not section.is_torch and section.kind in {"conv2d", "graphnet"}:
        return (11 * n if section.kind == "conv2d" else (n + 5) * n) * flat
    order = section.order
    near = reached(adjacent, order - 1) if section.net == "local" else 0
    laws = {
        "local": 2 * n * near * (near + steps + order) + (8 + order) * n * flat,
        "pfgl": (2 + section.order) * n * n + (8 + section.order) * n * flat,
        "conv2d": 2 * n * flat,
        "graphnet": (int(adjacent.sum()) + 5 * n) * flat,
    }
    return laws[section.net]
