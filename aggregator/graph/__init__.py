"""The model between the devices: what a server half hosts over all stations' activations.

A server half is lent a ``GraphModel`` that is already bound and never sees what computes it.
``Diffusion`` is plain numpy; everything in ``aggregator.graph.nets`` needs torch, and nothing else
of the package does.
"""

from __future__ import annotations

from aggregator.graph.diffusion import Diffusion
from aggregator.graph.model import GraphModel
from aggregator.graph.sites import Site, adjacency

__all__ = ["Diffusion", "GraphModel", "Site", "adjacency"]
