"""Keep the broker's access rules in step with the devices of a running daemon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aggregator.config import AggregatorConfig
from aggregator.extensions.authority.access.access_rules import AccessRulesMonitor
from aggregator.operations.server_extensions import ServerExtension, ServerParts


class AccessUpkeep(ServerExtension):
    """Compares the file of access rules after each change, and writes it where it may."""

    def __init__(self, parts: ServerParts, config: AggregatorConfig) -> None:
        super().__init__(parts, config)
        self._monitor = AccessRulesMonitor()

    def on_tick(self, now: float) -> None:
        """Compare the file if anything has changed."""
        self._monitor.follow(self.config, self.parts.isolation.registry, now)

    @property
    def obstacle(self) -> str:
        """Difference of the rules, with the remedy; empty without one."""
        return self._monitor.problem

    def status(self) -> Mapping[str, Any]:
        """Return the difference of the rules."""
        return {"access_rules": self.obstacle} if self.obstacle else {}
