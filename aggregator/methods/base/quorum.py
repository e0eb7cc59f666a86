"""S of M: who is working on what, whose answers wait, and when there are enough.

A client works on one task at a time. The server fires as soon as enough different clients have
answered since the last firing, whatever version of the consensus each started from; who did not
answer is counted at a later firing. Nobody is waited for, unless it would fall too far behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal


@dataclass(frozen=True, slots=True)
class QuorumSettings:
    """When to fire.

    Attributes:
        enough: S, how many different clients are enough.
        everybody: Wait for all who are present as well (the synchronous twin).
        patience: How many versions a client may fall behind (the papers' bound on staleness). A
            firing at which it is so far behind may still happen without it, the next may not.
        overdue: What happens then. ``drop``: its part in the consensus ends, until it answers
            again. ``wait``: nothing fires before it has answered, as the convergence theorem has
            it; one that has left is dropped all the same.
    """

    enough: int = 1
    everybody: bool = False
    patience: int = 20
    overdue: Literal["drop", "wait"] = "drop"


@dataclass(frozen=True, slots=True)
class QuorumState:
    """Who takes part, and whose answers wait. Every mapping is by client.

    Attributes:
        present: Whether it is linked now; all who are known, R of them.
        told: Version of the consensus it works on.
        since: Version at which its last answer was counted, or at which it first came.
        arrived: Version that its waiting answer started from.
    """

    present: Mapping[str, bool] = field(default_factory=dict)
    told: Mapping[str, int] = field(default_factory=dict)
    since: Mapping[str, int] = field(default_factory=dict)
    arrived: Mapping[str, int] = field(default_factory=dict)

    def came(self, client: str, version: int) -> QuorumState:
        """Return the same with a client present and at work on a version."""
        since = self.since if client in self.since else {**self.since, client: version}
        present = {**self.present, client: True}
        return replace(self, present=present, told={**self.told, client: version}, since=since)

    def went(self, client: str) -> QuorumState:
        """Return the same with a client absent: what it has sent stays, nobody waits for it."""
        return replace(self, present={**self.present, client: False})

    def counts(self, client: str, base: int, version: int) -> bool:
        """Whether an answer is news: to a task it was given after its last answer was counted.

        An older base is a replay, a newer one than ours was never announced.
        """
        return self.since.get(client, 0) <= base <= version

    def heard(self, client: str, base: int) -> QuorumState:
        """Return the same with an answer waiting; a client's newest is the one that counts."""
        known = self if client in self.present else self.came(client, base)
        return replace(known, arrived={**known.arrived, client: base})

    def overdue(self, version: int, calling: QuorumSettings) -> tuple[str, ...]:
        """Return who is further behind than may be, and has no answer waiting.

        >>> seen = QuorumState({"a": True, "b": True}, since={"a": 3, "b": 0})
        >>> [seen.overdue(version, QuorumSettings(patience=2)) for version in (2, 3)]
        [(), ('b',)]
        """
        return tuple(
            client
            for client in sorted(self.since)
            if version - self.since[client] > calling.patience and client not in self.arrived
        )

    def is_ready(self, version: int, calling: QuorumSettings) -> bool:
        """Whether enough have answered, and none must be waited for.

        >>> seen = QuorumState({"a": True, "b": True}, since={"a": 3, "b": 0}, arrived={"a": 3})
        >>> seen.is_ready(3, QuorumSettings(1)), seen.is_ready(3, QuorumSettings(1, everybody=True))
        (True, False)
        >>> seen.is_ready(3, QuorumSettings(1, patience=2, overdue="wait"))
        False
        """
        if len(self.arrived) < calling.enough:
            return False
        awaited = self._here(self.present) if calling.everybody else ()
        if calling.overdue == "wait":
            awaited = (*awaited, *self._here(self.overdue(version, calling)))
        return all(client in self.arrived for client in awaited)

    def counted(self, version: int) -> QuorumState:
        """Return the same after a firing: who had answered works on the version it produced."""
        fresh = dict.fromkeys(self.arrived, version)
        return replace(self, told={**self.told, **fresh}, since={**self.since, **fresh}, arrived={})

    def without(self, clients: Iterable[str]) -> QuorumState:
        """Return the same without those of some clients who are absent: they are known no more."""
        gone = {client for client in clients if not self.present.get(client, False)}
        present = {client: here for client, here in self.present.items() if client not in gone}
        told = {client: version for client, version in self.told.items() if client not in gone}
        since = {client: version for client, version in self.since.items() if client not in gone}
        return QuorumState(present, told, since, self.arrived)

    def _here(self, clients: Iterable[str]) -> tuple[str, ...]:
        return tuple(client for client in clients if self.present.get(client, False))
