"""Refuse a method that a privacy mechanism cannot protect; every error names its key."""

from __future__ import annotations

from collections.abc import Iterator

from edge_sdk.errors import ConfigError
from edge_sdk.privacy.noise_calibration import NoisePlan
from edge_sdk.wire.contract.manifest import GRADIENT
from edge_sdk.wire.contract.method import Contract, Up, answered


def refuse_method(plan: NoisePlan, method: str, contract: Contract) -> None:
    """Refuse a method that this mechanism cannot protect, or that would fail with it.

    Raises:
        ConfigError: The message names the key.
    """
    for key, why in _conflicts(plan, contract):
        raise ConfigError(f"privacy.{key}: method {method!r} {why}", hint="see docs/privacy.md")


def _conflicts(plan: NoisePlan, contract: Contract) -> Iterator[tuple[str, str]]:
    """Yield each key below ``[privacy]`` that conflicts with the method, and the reason."""
    point, (_, ask) = plan.mechanism.point, answered(contract)
    graphs = {graph for one in contract.values() for graph in one.graphs}
    if point == "gradient" and graphs - {GRADIENT}:
        unsupported = ", ".join(sorted(graphs - {GRADIENT}))
        yield "mechanism.point", f"asks for {unsupported}, whose result is not clipped per window"
    if point == "sign" and ask.up != Up.SIGNS:
        yield "mechanism.point", f"answers {ask.up.value!r}, not signs"
    if point == "update" and ask.up == Up.SIGNS:
        yield "mechanism.point", "sends signs: set point = 'sign'"
    if point == "update" and ask.has_statistic:
        yield "mechanism.point", "sends a statistic: set point = 'statistic'"
    if point == "statistic" and not ask.has_statistic:
        yield "mechanism.point", f"answers {ask.up.value!r}, not a statistic"
    if point != "sign" and ask.enc == "b1":
        yield "mechanism.point", "sends signs, which need a mechanism at point 'sign'"
    if point in {"update", "sign"} and ask.mirrored:
        yield (
            "mechanism.point",
            "replays its updates on both ends, which noise would change: set point = 'input'",
        )
    if point not in {"none", "input"} and any(a.up is Up.SIGNAL for a in contract.values()):
        why = "sends activations and their gradients, which have no noise: set point = 'input'"
        yield "mechanism.point", why
    every = (number for one in contract.values() for number in one.report)
    withheld = [n.name for n in every if n.measured and n.needed]
    if withheld and not plan.sends_metrics:
        yield "metrics", f"needs {withheld[0]!r}, a measured number that is withheld"
