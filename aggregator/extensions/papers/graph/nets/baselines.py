"""Server models to compare with: CNFGNN's message passing along edges, and convolutions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from aggregator.extensions.papers.graph.nets.spatiotemporal import Surroundings


class GraphNetLayer(nn.Module):
    """One layer of message passing: a message for every edge, and their mean at every node.

    ``e_ij = B(ReLU(A [x_i, x_j]))``, ``x_i' = D(ReLU(C [x_i, mean_j e_ij]))``; a node without
    neighbours receives zero. The sum over neighbours is taken before B, which is equivalent and
    costs nodes instead of edges.

    Reference:
        Battaglia et al. 2018, algorithm 1, without a global attribute.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.mine = nn.Linear(features, features)
        self.theirs = nn.Linear(features, features, bias=False)
        self.message = nn.Linear(features, features)
        self.gather = nn.Linear(2 * features, features)
        self.out = nn.Linear(features, features)

    def forward(self, x: Tensor, edges: Tensor, degree: Tensor) -> Tensor:
        """Map ``x (M, N, F)``; ``edges (2, E)`` go from the second end to the first."""
        to, of = edges
        messages = torch.relu(self.mine(x)[:, to] + self.theirs(x)[:, of])
        return self.updated(x, torch.zeros_like(x).index_add(1, to, messages), degree)

    def updated(self, x: Tensor, total: Tensor, degree: Tensor) -> Tensor:
        """Return the nodes' new values from the sums ``(M, N, F)`` of their neighbours' messages."""
        mean = self.message(total / degree.clamp_min(1)[:, None]) * (degree > 0)[:, None]
        found: Tensor = self.out(torch.relu(self.gather(torch.cat([x, mean], 2))))
        return found


class GraphNet(nn.Module):
    """Layers in sequence, ReLU between; every time step is a separate graph."""

    def __init__(self, features: int, layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(GraphNetLayer(features) for _ in range(layers))

    def forward(self, h: Tensor, around: Surroundings) -> Tensor:
        edges = _edges(around)
        degree = torch.bincount(edges[0], minlength=h.shape[1]).to(h.dtype)
        x = h.permute(0, 3, 1, 2).flatten(0, 1)
        for depth, layer in enumerate(self.layers):
            x = layer(torch.relu(x) if depth else x, edges, degree)
        out = x.view(h.shape[0], h.shape[3], *x.shape[1:]).permute(0, 2, 3, 1)
        found: Tensor = out * around.there[:, None, None]
        return found


class DenseGraphNet(GraphNet):
    """``GraphNet`` with a message for every pair of stations: its operators have a fixed shape.

    It costs the square of the stations whatever the graph, as a graph of all neighbours does.
    """

    def forward(self, h: Tensor, around: Surroundings) -> Tensor:
        """Map ``(B, N, F, L)`` to the same shape."""
        n = h.shape[1]
        linked = torch.where(around.terms[0] != 0.0, 0.0, torch.sign(torch.abs(around.terms[1])))
        degree = linked.sum(1)
        x = h.permute(0, 3, 1, 2).reshape(-1, n, h.shape[2])
        for depth, layer in enumerate(self.layers):
            assert isinstance(layer, GraphNetLayer)
            x = torch.relu(x) if depth else x
            messages = torch.relu(layer.mine(x)[:, :, None] + layer.theirs(x)[:, None])
            x = layer.updated(x, (messages * linked[:, :, None]).sum(2), degree)
        out = x.view(h.shape[0], h.shape[3], n, h.shape[2]).permute(0, 2, 3, 1)
        found: Tensor = out * around.there[:, None, None]
        return found


def _edges(around: Surroundings) -> Tensor:
    """Return the pairs with a non-zero Laplacian off its diagonal, ``(2, E)``."""
    step = around.terms[1]
    return (step - torch.diag(step.diagonal())).nonzero().T


class Conv2d(nn.Module):
    """Two convolutions of 3 by 3 with ReLU over (station, time); the graph is not used.

    Stations are neighbours here if their slots are adjacent.

    >>> sum(p.numel() for p in Conv2d(64).parameters())
    73856
    """

    def __init__(self, features: int, layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv2d(features, features, 3, padding=1) for _ in range(layers)
        )

    def forward(self, h: Tensor, around: Surroundings) -> Tensor:
        plane = h.transpose(1, 2)
        for layer in self.layers:
            plane = torch.relu(layer(plane)) * around.there[:, None]
        return plane.transpose(1, 2)
