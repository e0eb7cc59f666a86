"""Choose a device's run among those that the aggregator names, by the abilities of the device."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from edge_sdk.store.store import DeviceStore
from edge_sdk.wire.errors import ABILITIES, Reason

_DECLINED = "runs declined"

UNNAMED = "-"
"""Stands for the name of the run that is announced to all, as in the aggregator's lists."""


class RunChoice:
    """The runs that the last welcome names, and those that this device cannot take part in.

    A declined run is tried again after the next welcome: settings, sources and software may have
    changed.

    Args:
        store: Store that keeps the declined runs, for the ``status`` command.

    Attributes:
        names: Names of the runs in the order of the welcome.
        declined: Reason for which each run was declined, by its name.
    """

    def __init__(self, store: DeviceStore) -> None:
        self._store = store
        self.names: tuple[str, ...] = ()
        self.declined: dict[str, str] = {}

    def offer(self, names: Sequence[str]) -> str:
        """Set the runs of a welcome; return the first one's name, empty for the run of all.

        The run of all, which no welcome names, may have been declined before the welcome arrived.
        """
        self.names = tuple(names)
        kept = {} if names else {x: y for x, y in self.declined.items() if x == UNNAMED}
        self._save(kept)
        return self.names[0] if self.names else ""

    def is_last(self, name: str) -> bool:
        """Return whether no other run is left if this one is declined."""
        return self._after(name) is None

    def decline(self, name: str, reason: Reason) -> str | None:
        """Record that the device cannot take part in a run.

        Args:
            name: Name of the run.
            reason: Reason; one that says nothing of the device's abilities changes nothing.

        Returns:
            The name of the run to take part in instead, or None if none is left.
        """
        if reason not in ABILITIES or name not in (self.names or ("",)):
            return None
        self._save({**self.declined, name or UNNAMED: reason.name})
        return self._after(name)

    def accept(self, name: str) -> None:
        """Record that the device takes part in a run: its announcement fits now."""
        left = {x: y for x, y in self.declined.items() if x != (name or UNNAMED)}
        if left != self.declined:
            self._save(left)

    def _after(self, name: str) -> str | None:
        left = (one for one in self.names if one != name and one not in self.declined)
        return next(left, None)

    def _save(self, declined: dict[str, str]) -> None:
        if declined != self.declined or declined != declined_runs(self._store):
            self._store.file_paper(_DECLINED, json.dumps(declined).encode())
        self.declined = declined


def declined_runs(store: DeviceStore) -> Mapping[str, str]:
    """Return the runs declined since the last welcome, with the reasons, as the store holds them."""
    try:
        found = json.loads(store.paper(_DECLINED) or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
