"""Add up the power of a charger's sockets, which report at moments of their own."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from edge_sdk.extensions.sources.base import SourceSample, tally
from edge_sdk.extensions.sources.ocpp_totals import Total, keep, sample_of
from edge_sdk.extensions.sources.ocpp_values import LOCATIONS

_FRESH = 3600.0  # seconds for which the power of a socket is added to that of the others


@dataclass(slots=True)
class SocketPowers:
    """The latest power of every socket."""

    unused: Counter[str]  # values that are not used, by name and reason, as ``tally`` counts them
    _latest: OrderedDict[tuple[str, str], tuple[float, float]] = field(default_factory=OrderedDict)

    def totals(self, socket: str, values: Iterable[Total]) -> Iterator[SourceSample]:
        """Yield the power of all sockets, by the best place and phases of each moment.

        A main meter counts where no socket has reported its power.
        """
        moments: dict[tuple[float, str], list[Total]] = {}
        for total in values:
            moments.setdefault((total.last.time, total.last.measurand), []).append(total)
        for (time, name), group in moments.items():
            best, *others = sorted(group, key=lambda total: total.rank)
            for one in others:
                tally(self.unused, f"{name} ({one.text or LOCATIONS[0]})", "redundant")
            if best.last.unit != "W":
                yield sample_of(socket, best, 0, "")
                continue
            keep(self._latest, (socket, name), (time, best.value))
            fresh = {
                device: watts
                for (device, of), (at, watts) in self._latest.items()
                if of == name and abs(time - at) <= _FRESH
            }
            mains = {x for x in fresh if any(one.startswith(f"{x}/") for one in fresh)}
            if socket in mains:
                tally(self.unused, f"{name} (main meter)", "redundant")
                continue
            watts = math.fsum(value for device, value in fresh.items() if device not in mains)
            yield SourceSample(name, time, watts, "W", socket.partition("/")[0])

    def forget(self, socket: str) -> None:
        for key in [key for key in self._latest if key[0] == socket]:
            del self._latest[key]
