"""Quorum of asynchronous rounds, S of M: tasks in progress, waiting updates, and when to fire.

A client works on one task at a time. The server fires as soon as enough different clients have
sent an update since the last firing, whichever version each started from; later updates count at
a later firing. The server waits for no client beyond the quorum, unless its staleness is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal


@dataclass(frozen=True, slots=True)
class QuorumSettings:
    """Settings of the quorum.

    Attributes:
        enough: S, number of different clients that suffices.
        waits_for_all: True waits for all present clients as well (the synchronous variant).
        staleness_bound: Number of versions that a client may fall behind (the papers' bound on staleness).
            The firing at which it reaches the bound may happen without it, the next may not.
        overdue: Action on such a client. ``drop``: its part in the consensus ends until its next
            update. ``wait``: nothing fires before its update, as in the convergence theorem; a
            client that has left is dropped in either case.
    """

    enough: int = 1
    waits_for_all: bool = False
    staleness_bound: int = 20
    overdue: Literal["drop", "wait"] = "drop"


@dataclass(frozen=True, slots=True)
class QuorumState:
    """Participating clients and waiting updates. Every mapping is by client.

    Attributes:
        present: True for a linked client; the keys are all known clients, R of them.
        task_version: Version of the consensus that the client works on.
        since: Version at which its last update was counted, or at which it first joined.
        arrived: Version that its waiting update started from.
    """

    present: Mapping[str, bool] = field(default_factory=dict)
    task_version: Mapping[str, int] = field(default_factory=dict, metadata={"leaf": "told"})
    since: Mapping[str, int] = field(default_factory=dict)
    arrived: Mapping[str, int] = field(default_factory=dict)

    def joined(self, client: str, version: int) -> QuorumState:
        """Return the state with a client present and at work on a version."""
        since = self.since if client in self.since else {**self.since, client: version}
        present = {**self.present, client: True}
        return replace(
            self, present=present, task_version={**self.task_version, client: version}, since=since
        )

    def left(self, client: str) -> QuorumState:
        """Return the state with a client absent: its updates stay, and no round waits for it."""
        return replace(self, present={**self.present, client: False})

    def counts(self, client: str, base: int, version: int) -> bool:
        """Return True if an update is for a task sent after the client's last counted update.

        An older base is a replay; a newer one than the server's was never announced.
        """
        return self.since.get(client, 0) <= base <= version

    def received(self, client: str, base: int) -> QuorumState:
        """Return the state with an update waiting; a client's newest update counts."""
        known = self if client in self.present else self.joined(client, base)
        return replace(known, arrived={**known.arrived, client: base})

    def overdue(self, version: int, quorum: QuorumSettings) -> tuple[str, ...]:
        """Return the clients beyond the staleness bound without a waiting update.

        >>> seen = QuorumState({"a": True, "b": True}, since={"a": 3, "b": 0})
        >>> [seen.overdue(version, QuorumSettings(staleness_bound=2)) for version in (2, 3)]
        [(), ('b',)]
        """
        return tuple(
            client
            for client in sorted(self.since)
            if version - self.since[client] > quorum.staleness_bound and client not in self.arrived
        )

    def is_ready(self, version: int, quorum: QuorumSettings) -> bool:
        """Return True if enough clients have sent an update, and none must be waited for.

        >>> seen = QuorumState({"a": True, "b": True}, since={"a": 3, "b": 0}, arrived={"a": 3})
        >>> seen.is_ready(3, QuorumSettings(1)), seen.is_ready(3, QuorumSettings(1, waits_for_all=True))
        (True, False)
        >>> seen.is_ready(3, QuorumSettings(1, staleness_bound=2, overdue="wait"))
        False
        """
        if len(self.arrived) < quorum.enough:
            return False
        awaited = self._here(self.present) if quorum.waits_for_all else ()
        if quorum.overdue == "wait":
            awaited = (*awaited, *self._here(self.overdue(version, quorum)))
        return all(client in self.arrived for client in awaited)

    def counted(self, version: int) -> QuorumState:
        """Return the state after a firing: its clients work on the version that it produced."""
        versions = dict.fromkeys(self.arrived, version)
        return replace(
            self,
            task_version={**self.task_version, **versions},
            since={**self.since, **versions},
            arrived={},
        )

    def without(self, clients: Iterable[str]) -> QuorumState:
        """Return the state without those of some clients that are absent."""
        removed = {client for client in clients if not self.present.get(client, False)}
        present = {
            client: is_present
            for client, is_present in self.present.items()
            if client not in removed
        }
        task_version = {
            client: version
            for client, version in self.task_version.items()
            if client not in removed
        }
        since = {client: version for client, version in self.since.items() if client not in removed}
        return QuorumState(present, task_version, since, self.arrived)

    def _here(self, clients: Iterable[str]) -> tuple[str, ...]:
        return tuple(client for client in clients if self.present.get(client, False))
