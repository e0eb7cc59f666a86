"""The methods that exchange models between neighbours."""

from __future__ import annotations

from dataclasses import replace

from edge_sdk.protocol.contract.method import RATE, STEPS, Ask, Number, Up
from edge_sdk.protocol.contract.plugin import MethodPlugin

_FLAG = (0.0, 1.0)
_AMONG = Ask(  # the task also names the neighbours
    ("gradient",),
    numbers=(
        STEPS,  # local steps between two exchanges
        RATE,
        Number("fading", *_FLAG),  # divide the rate by the square root of the step's number
        Number("order", *_FLAG),  # step and mix together, or step first
        Number("every", 0.0, 1e9),
        Number("deadline", 0.0, 1e9),
        Number("last", 1, 2**31),
    ),
    up=Up.PEERS,
    personal=True,
    mirrored=True,
)
_DOUBTING = (
    Number("insist", *_FLAG),  # wait for a neighbour's message without a time limit
    Number("robust", 0, 2),  # plain, clipped, trimmed mean
    Number("radius", 1e-12, 1e12),
    Number("trim", 0, 24),
)

DFL_SGD = MethodPlugin(
    {"begin": replace(_AMONG, numbers=(*_AMONG.numbers, *_DOUBTING))},
    "edge_sdk.extensions.peers.gossip:dfl_sgd",
    "aggregator.extensions.papers.peers.peer_topology:DFL_SGD",
)
DFL_GT = MethodPlugin(
    {"begin": _AMONG},
    "edge_sdk.extensions.peers.gossip:dfl_gt",
    "aggregator.extensions.papers.peers.peer_topology:DFL_GT",
)
