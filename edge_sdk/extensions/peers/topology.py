"""Define a device's neighbours and its settings for training with them.

The operator writes them into the device's configuration, or an aggregator that hosts the topology
sends them in a signed ``begin``. No message of a neighbour changes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Literal

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.app.schema import Between, Length, Matches, SchemaError
from edge_sdk.app.settings import Duration, seconds
from edge_sdk.extensions.peers.mixing_matrix import metropolis_row
from edge_sdk.extensions.peers.peer_mixing import CLIPPED, PLAIN, TRIMMED
from edge_sdk.protocol import messages as m
from edge_sdk.protocol.contract.method import Scalars
from edge_sdk.protocol.messages import NEIGHBOURS_LIMIT
from edge_sdk.protocol.public_key import weakness

Hex = Annotated[str, Matches(r"[0-9a-fA-F]{64}")]
DeviceHex = Annotated[str, Matches(r"[0-9a-fA-F]{64}|0[23][0-9a-fA-F]{64}")]
Keys = Annotated[Mapping[str, Hex], Length(0, NEIGHBOURS_LIMIT)]
SigningKeys = Annotated[Mapping[str, DeviceHex], Length(0, NEIGHBOURS_LIMIT)]
Weight = Annotated[float, Between(1e-9, 1.0)]
Count = Annotated[int, Between(1, 65536)]

FOREVER = 2**31
INTERVAL, DEADLINE = "15m", "2m"

DGD, ATC = 0.0, 1.0
"""Values of ``order``: step and mix together, or step first."""


@dataclass(frozen=True, slots=True)
class NeighboursSection:
    """Training with neighbours and without a server. Without keys the section is off."""

    keys: SigningKeys = field(default_factory=dict)  # each neighbour's id and its key, hex digits
    weights: Mapping[str, Weight] = field(default_factory=dict)  # left out: computed from degrees
    encryption_keys: Keys = field(default_factory=dict)  # X25519 keys of neighbours that have one
    epoch: Annotated[int, Between(1, 2**31)] = 1  # raise it on all devices to restart the trackers
    steps: Count = 1  # local steps between two exchanges, that of the exchange included
    rate: Annotated[float, Between(0.0, 1e3)] = 1e-3  # length of a step
    rate_decay: bool = False  # divide the rate by the square root of the step's number
    order: Literal["dgd", "atc"] = "dgd"  # step and mix together, or step first
    robust: Literal["none", "clip", "trim"] = "none"  # against Byzantine neighbours; dfl_sgd only
    radius: Annotated[float, Between(1e-12, 1e12)] = 1.0  # clip: largest change by one neighbour
    trim: Annotated[int, Between(0, NEIGHBOURS_LIMIT)] = 1  # trim: neighbours left out at each end
    wait_for_neighbours: bool = False  # dfl_sgd: wait for them without a time limit, as dfl_gt
    interval: Duration = INTERVAL  # time between two exchanges
    deadline: Duration = DEADLINE  # time after which a neighbour is missing
    total_steps: Annotated[int, Between(1, FOREVER)] | None = None  # total steps; left out: no end


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """Settings of an exchange."""

    epoch: int  # number of the exchange's start
    keys: Mapping[str, bytes]  # raw public keys by neighbour
    # weight of each neighbour; empty: computed from degrees in every exchange
    weights: Mapping[str, float]
    values: Scalars  # scalars of the half's tasks
    interval: float  # seconds between two exchanges
    deadline: float  # seconds after which a neighbour is missing
    total_steps: int = FOREVER
    # raw X25519 keys of the neighbours that have one
    open: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        return max(1, int(self.values.get("steps", 1)))

    def weight(self, degrees: Mapping[str, int], name: str) -> float:
        """Return a neighbour's weight from its degree and this device's; the same at both ends.

        >>> hood = PeerSettings(1, {"b": b"", "c": b""}, {}, {}, 1.0, 1.0)
        >>> hood.weight({"b": 5, "c": 1}, "b") == hood.weight({"b": 5}, "b") == 1 / 6
        True
        """
        if self.weights:
            return self.weights[name]
        everybody = {other: degrees.get(other, 1) for other in self.keys}
        return metropolis_row(len(self.keys), everybody)[1][name]


def settings_of_section(section: NeighboursSection, method: str) -> PeerSettings:
    """Return the settings of a configuration section.

    Raises:
        SchemaError: Weights of other devices than the neighbours, a robust mixing of trackers, or a
            key of small order, which accepts forged signatures.
    """
    if section.weights and section.weights.keys() != section.keys.keys():
        raise SchemaError(
            "neighbours.weights", "one for each of neighbours.keys, or none", "others"
        )
    if method == "dfl_gt" and section.robust != "none":
        expected = "none with dfl_gt: trackers that are cut no longer add up to the gradients"
        raise SchemaError("neighbours.robust", expected, section.robust)
    keys = {name: bytes.fromhex(key) for name, key in sorted(section.keys.items())}
    for name, key in keys.items():
        if found := weakness(key):
            raise SchemaError(f"neighbours.keys.{name}", "a valid public key", f"one that {found}")
    if strangers := sorted(section.encryption_keys.keys() - section.keys.keys()):
        raise SchemaError(
            "neighbours.encryption_keys", "neighbours of neighbours.keys", strangers[0]
        )
    values: dict[str, float] = {
        "steps": float(section.steps),
        "rate": section.rate,
        "fading": float(section.rate_decay),
        "order": ATC if section.order == "atc" else DGD,
    }
    if section.wait_for_neighbours and method == "dfl_sgd":
        values |= {"insist": 1.0}
    if section.robust == "clip":
        values |= {"robust": CLIPPED, "radius": section.radius}
    elif section.robust == "trim":
        values |= {"robust": TRIMMED, "trim": float(section.trim)}
    return PeerSettings(
        section.epoch,
        keys,
        dict(section.weights),
        values,
        seconds(section.interval),
        seconds(section.deadline),
        section.total_steps or FOREVER,
        {name: bytes.fromhex(key) for name, key in sorted(section.encryption_keys.items())},
    )


def settings_of_task(task: m.TaskMessage) -> PeerSettings:
    """Return the settings of an aggregator that hosts the topology; ``round`` is the epoch."""
    values = {"robust": PLAIN, **task.vals}
    interval = values.pop("every", seconds(INTERVAL))
    deadline = values.pop("deadline", seconds(DEADLINE))
    total_steps = int(values.pop("last", FOREVER))
    weights = dict(zip(task.peers, task.weights, strict=False))
    keys = dict(zip(task.peers, task.keys, strict=True))
    found = {name: key for name, key in zip(task.peers, task.open, strict=False) if key}
    return PeerSettings(task.round, keys, weights, values, interval, deadline, total_steps, found)
