"""Define a method: two pure state machines, one per end, and the contract between them.

A half is a pure state machine; a shell (``edge_sdk.client`` on a device, ``aggregator.daemon`` on
the server) drives it and owns bytes, clocks, disks, keys and noise. A task is an effect of the
server half and an event of the device half; an update is the reverse.
"""

from __future__ import annotations

from edge_sdk.wire.contract.method.asks import Ask, Contract, Number, Up, answered, answers
from edge_sdk.wire.contract.method.contracts import (
    CONTRACTS,
    LOSS,
    METHODS_GROUP,
    RATE,
    SERVE,
    SHARE,
    STEPS,
)
from edge_sdk.wire.contract.method.events import (
    ALL,
    END,
    Array,
    Closed,
    Due,
    Effect,
    Effects,
    Event,
    Member,
    ParentModel,
    Played,
    Scalars,
    Signal,
    Task,
    Unlearned,
    Update,
)
from edge_sdk.wire.contract.method.half import Half, Play

__all__ = [
    "ALL",
    "CONTRACTS",
    "END",
    "LOSS",
    "METHODS_GROUP",
    "RATE",
    "SERVE",
    "SHARE",
    "STEPS",
    "Array",
    "Ask",
    "Closed",
    "Contract",
    "Due",
    "Effect",
    "Effects",
    "Event",
    "Half",
    "Member",
    "Number",
    "ParentModel",
    "Play",
    "Played",
    "Scalars",
    "Signal",
    "Task",
    "Unlearned",
    "Up",
    "Update",
    "answered",
    "answers",
]
