"""Export a graph model between the devices, so that a server runs it without torch.

The graphs take one array for each layer, and any number of stations, features and steps: one file
serves every fleet whose net has the same blocks.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp

from aggregator.extensions.papers.graph.exported_net import (
    FORWARD,
    LAYOUT,
    PULLBACK,
    ExportedNet,
    NetOptions,
)
from aggregator.extensions.papers.graph.nets.baselines import Conv2d, DenseGraphNet
from aggregator.extensions.papers.graph.nets.spatiotemporal import (
    SpatioTemporal,
    SpatioTemporalBlock,
    Surroundings,
)
from aggregator.extensions.papers.graph.stations import chebyshev_of_present

TOLERANCE = 1e-4
"""Largest difference of a result in units of the largest of its array; six times that of float32 sums
in other orders."""

Emitted = Callable[..., bytes]

# sizes of the example, each different from every other: equal ones would become one
BATCH, STATIONS, FEATURES, STEPS = 37, 11, 7, 5
_LETTERS = {STATIONS: "N", FEATURES: "F", 2 * FEATURES: "2F", STEPS: "L"}


def exported(options: NetOptions, emitted: Emitted) -> bytes:
    """Return the graphs of a net as a file: ``forward``, ``pullback``, and the layout of its layers.

    Args:
        emitted: Writes a function of tensors as a graph: examples of its arguments, the sizes among
            them that are open, names of the inputs and of the results.
    """
    net = _net(options, STATIONS, FEATURES, STEPS).float().eval()
    for one in list(net.modules()):
        if isinstance(one, SpatioTemporalBlock) and one.norm is not None:
            one.norm = _OpenLayerNorm(one.norm)  # type: ignore[assignment]
    layers = [(name, tuple(p.shape)) for name, p in net.named_parameters()]
    names = [name for name, _ in layers]
    draw = torch.Generator().manual_seed(0)

    def rand(*shape: int) -> Tensor:
        return torch.rand(shape, generator=draw)

    shape = (BATCH, STATIONS, FEATURES, STEPS)
    weights = [rand(*p.shape) for p in net.parameters()]
    terms = rand(max(options.order, 2), STATIONS, STATIONS)
    around = [torch.ones(STATIONS), terms]

    def forward(h: Tensor, there: Tensor, terms: Tensor, *weights: Tensor) -> tuple[Tensor]:
        return (_applied(net, names, h, (there, terms), weights),)

    def pullback(
        h: Tensor, there: Tensor, terms: Tensor, gz: Tensor, *weights: Tensor
    ) -> tuple[Tensor, ...]:
        def of(h: Tensor, *weights: Tensor) -> Tensor:
            return _applied(net, names, h, (there, terms), weights)

        found: tuple[Tensor, ...] = vjp(of, h, *weights)[1](gz)
        return found

    inputs, sizes = ("h", "there", "terms"), {BATCH, *_LETTERS}
    slopes = ["gh", *(f"g:{name}" for name in names)]
    texts = {
        FORWARD: emitted(
            forward, (rand(*shape), *around, *weights), sizes, (*inputs, *names), ("z",)
        ),
        PULLBACK: emitted(
            pullback,
            (rand(*shape), *around, rand(*shape), *weights),
            sizes,
            (*inputs, "gz", *names),
            slopes,
        ),
        LAYOUT: json.dumps(
            {**asdict(options), "layers": [[n, _symbols(s)] for n, s in layers]}, indent=1
        ).encode(),
    }
    return _packed(texts)


def _net(options: NetOptions, stations: int, features: int, steps: int) -> nn.Module:
    if options.kind == "pfgl":
        return SpatioTemporal(
            stations,
            features,
            steps,
            blocks=options.blocks,
            order=options.order,
            residual_ln=options.residual_ln,
            swapped=options.astgcn_order,
        )
    return (Conv2d if options.kind == "conv2d" else DenseGraphNet)(features, options.blocks)


class _OpenLayerNorm(nn.Module):
    """``nn.LayerNorm`` over any number of features: torch's has the number of the example."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        from_mean = x - x.mean(-1, keepdim=True)
        variance = (from_mean * from_mean).mean(-1, keepdim=True)
        return from_mean * torch.rsqrt(variance + self.eps) * self.weight + self.bias


def _applied(
    net: nn.Module,
    names: Sequence[str],
    h: Tensor,
    around: Sequence[Tensor],
    weights: Sequence[Tensor],
) -> Tensor:
    here, terms = around[0] > 0.0, around[1]
    x = torch.where(here[:, None, None], h, 0.0)
    given = dict(zip(names, weights, strict=True))
    found: Tensor = functional_call(net, given, (x, Surroundings(here, terms)))
    return found


def _symbols(shape: Sequence[int]) -> list[str]:
    return [_LETTERS.get(size, str(size)) for size in shape]


def _packed(texts: dict[str, bytes]) -> bytes:
    """Return an archive with the same bytes for the same texts."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in texts.items():
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def largest_error(data: bytes, seed: int = 0) -> float:
    """Return the largest difference between a file's results and torch's, over four fleets.

    Results are compared in units of the largest of their array.
    """
    file, draw = ExportedNet.read(data), np.random.Generator(np.random.Philox(seed))
    options, worst = file.options, 0.0
    for count, stations, features, steps in (
        (3, 4, 6, 8),
        (1, 9, 3, 5),
        (5, 2, 4, 4),
        (2, 8, 16, 12),
    ):
        shape = (count, stations, features, steps)
        net = _net(options, *shape[1:]).float()
        weights = {
            name: torch.tensor(draw.normal(size=tuple(p.shape)) * 0.3, dtype=torch.float32)
            for name, p in net.named_parameters()
        }
        there = np.arange(stations) != 1
        adjacent = 1.0 - np.eye(stations)
        terms = chebyshev_of_present(adjacent, there, max(options.order, 2)).astype(np.float32)
        h, gz = (draw.normal(size=shape).astype(np.float32) for _ in range(2))
        x = torch.tensor(h)
        given = [torch.tensor(one) for one in (there.astype(np.float32), terms)]

        def of(h: Tensor, *layers: Tensor) -> Tensor:
            return _applied(net, list(weights), h, given, layers)  # noqa: B023 - called at once

        made = vjp(of, x, *weights.values())
        z, pull = made[0], made[1]
        feeds = {"h": h, "there": given[0].numpy(), "terms": terms}
        layers = {name: one.numpy() for name, one in weights.items()}
        found = [*file.forward(**feeds, **layers), *file.pullback(**feeds, gz=gz, **layers)]
        for wanted, one in zip([z, *pull(torch.tensor(gz))], found, strict=True):
            scale = float(wanted.abs().max()) or 1.0
            worst = max(worst, float(np.abs(wanted.numpy() - one).max()) / scale)
    return worst
