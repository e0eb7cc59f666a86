"""Graph models between the devices, which a server half hosts over all stations' activations.

A server half receives a ``GraphModel`` that is already bound and is independent of its library.
``Diffusion`` is plain numpy; everything in ``aggregator.extensions.papers.graph.nets`` needs torch, and nothing else
of the package does.
"""

from __future__ import annotations

from aggregator.extensions.papers.graph.model import Diffusion, GraphModel
from aggregator.extensions.papers.graph.stations import Site, adjacency

__all__ = ["Diffusion", "GraphModel", "Site", "adjacency"]
