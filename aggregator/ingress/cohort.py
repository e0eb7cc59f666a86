"""Choose the devices of a run by their labels and abilities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aggregator.ingress.registry import Registry
from aggregator.store.types import EnrolledDevice


@dataclass(frozen=True, slots=True)
class Cohort:
    """The enrolled devices that a run takes. It follows the registry, so it is always up to date.

    A device takes part in one run: the first, in the order of the configuration, that its labels fit
    and that it has not declined. A device with several participations has an id for each: each takes
    part in another run, so that no run counts the device twice.
    """

    registry: Registry  # enrolled devices and their presence
    # labels that a device must have; none takes every device
    labels: Mapping[str, str] = field(default_factory=dict)
    run: str = ""
    before: tuple[Cohort, ...] = ()

    def takes(self, device: str) -> bool:
        """Return whether a device takes part in the run: it receives tasks and is counted."""
        return self.holds(device) and not any(one.holds(device) for one in self.before)

    def holds(self, device: str) -> bool:
        """Return whether a device could take part: it has the labels and has not declined.

        It could not where an earlier participation of the same device takes part.
        """
        client = self.registry.client(device)
        if client is None or not fits(client, self.labels):
            return False
        if self.registry.has_declined(device, self.run):
            return False
        return not any(self.takes(other) for other in self.registry.earlier_participations(device))

    def __len__(self) -> int:
        return sum(self.takes(device) for device in self.registry.enrolled())

    def present(self) -> set[str]:
        """Return its devices that are present and not shut out."""
        return {device for device in self.registry.present() if self.takes(device)}

    def shut_out(self) -> set[str]:
        outside = {one.id for one in self.registry.clients() if not self.takes(one.id)}
        return self.registry.shut_out() | outside

    def is_shut_out(self, device: str) -> bool:
        """Return whether ``shut_out`` contains this device, without computing the set."""
        client = self.registry.client(device)
        return client is not None and (client.state != "enrolled" or not self.takes(device))


def fits(client: EnrolledDevice, labels: Mapping[str, str]) -> bool:
    """Return whether a device has all of these labels.

    >>> meter = EnrolledDevice("m", (), labels=(("kind", "meter"), ("region", "north")))
    >>> fits(meter, {"kind": "meter"}), fits(meter, {"kind": "cell"}), fits(meter, {})
    (True, False, True)
    """
    return labels.items() <= dict(client.labels).items()
