"""Define a device's role in a rollout, with the same result on device and server.

There is no list of devices: the device draws its place from its id and the signed salt, and the aggregator
draws the same place when it judges the device's report.
"""

from __future__ import annotations

from typing import Literal

from edge_sdk.extensions.rollouts.messages import RolloutMessage
from edge_sdk.protocol.messages import takes_part

Role = Literal["none", "score", "serve"]


def served_share(plan: RolloutMessage, stage: int) -> float:
    """Return the share of the fleet that may serve the version in a stage; 0 in the first."""
    return plan.waves[min(stage, len(plan.waves)) - 1] if stage > 0 else 0.0


def scored_share(plan: RolloutMessage, stage: int) -> float:
    """Return the share that scores or serves the version in a stage.

    The next wave scores it while the present one serves it, and at least ``plan.shadow`` do.
    """
    return max(plan.shadow, plan.waves[min(stage, len(plan.waves) - 1)])


def role(plan: RolloutMessage, stage: int, device: str) -> Role:
    """Return a device's role in a stage: none, score the version, or serve it as well.

    >>> of = {"digest": bytes(32), "served": bytes([2] * 32)}
    >>> plan = RolloutMessage(
    ...     serial=1, name="load", version=2, size=9, salt=bytes(16),
    ...     waves=(0.01, 0.05, 1.0), shadow=0.25, days=3, least=2, margin=0.02, bound=0.01, **of)
    >>> ids = [f"meter-{i}" for i in range(1000)]
    >>> for stage in range(4):
    ...     found = [role(plan, stage, one) for one in ids]
    ...     print(found.count("serve"), found.count("score"))
    0 240
    13 227
    48 952
    1000 0
    """
    if takes_part(plan.salt, device, served_share(plan, stage)):
        return "serve"
    return "score" if takes_part(plan.salt, device, scored_share(plan, stage)) else "none"
