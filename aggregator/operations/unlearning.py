"""Decide whether a method can remove what one device has contributed."""

from __future__ import annotations

from aggregator.operations.control_queue import OrderError
from edge_sdk.wire.contract.method import CONTRACTS, answered


def refuse_unlearning(method: str) -> None:
    """Refuse to unlearn a device where a method does not keep contributions apart.

    Raises:
        OrderError: With the remedy.

    Example:
        >>> refuse_unlearning("analytic")
        >>> refuse_unlearning("fedavg")
        Traceback (most recent call last):
        aggregator.operations.control_queue.OrderError: method 'fedavg' cannot unlearn a device: ...
    """
    if method in CONTRACTS and answered(CONTRACTS[method])[1].has_statistic:
        return
    raise OrderError(
        f"method {method!r} cannot unlearn a device: its updates are mixed into the model when a "
        "round closes",
        hint="revoke the device, then begin anew: gridfed-aggregator announce --fresh",
    )
