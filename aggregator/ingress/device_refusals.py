"""Record which devices refuse the announced bundle, or the aggregator's keys."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from edge_sdk.app.cli import fields
from edge_sdk.errors import Reason
from edge_sdk.protocol.keys import KID_SIZE

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class DeviceRefusals:
    """Refusals of devices, in memory only: devices repeat them."""

    # reason of each device that does not follow the announced bundle
    bundles: dict[str, str] = field(default_factory=dict)
    # key ids of the root that a device trusts, and of the announced one that it refuses
    roots: dict[str, str] = field(default_factory=dict)

    def record_bundle(self, device: str, reason: Reason, run: int | None = None) -> None:
        """Record that a device does not follow the announced bundle; log growing numbers only.

        Args:
            run: Run of the announcement; None if the device does not name it.
        """
        if self.bundles.get(device) == reason.name:
            return
        self.bundles[device] = reason.name
        count = self.bundle_counts()[reason.name]
        if _is_logged(count):
            about = {"reason": reason.name, "devices": count, "device": device}
            about |= {} if run is None else {"run": run}
            logger.warning("bundle refused by devices %s", fields(**about))

    def record_root(self, device: str, pair: bytes) -> None:
        """Record whether a device's hello refuses the root, empty if it does not; log growing numbers only."""
        if not pair:
            self.roots.pop(device, None)
        elif self.roots.get(device) != named(pair):
            self.roots[device] = named(pair)
            if _is_logged(len(self.roots)):
                about = {"devices": len(self.roots), "device": device, "roots": named(pair)}
                logger.warning("root refused by devices %s", fields(**about))

    def bundle_counts(self) -> Counter[str]:
        """Return the number of devices that do not follow the announced bundle, by reason."""
        return Counter(self.bundles.values())

    def root_counts(self, enrolled: Collection[str]) -> Counter[str]:
        """Return the number of enrolled devices that refuse the announced root, by both key ids."""
        return Counter(roots for device, roots in self.roots.items() if device in enrolled)

    def of(self, device: str) -> dict[str, str]:
        """Return a device's refusal: the reason for a bundle, the key ids of a root."""
        found = {"bundle refused": self.bundles.get(device), "root refused": self.roots.get(device)}
        return {what: why for what, why in found.items() if why is not None}


def _is_logged(count: int) -> bool:
    return count & (count - 1) == 0


def named(pair: bytes) -> str:
    """Return the key ids in ``refuses`` of a hello.

    >>> named(bytes(8) + b"refused!")
    'trusts 0000000000000000, refuses 7265667573656421'
    """
    return f"trusts {pair[:KID_SIZE].hex()}, refuses {pair[KID_SIZE:].hex()}"
