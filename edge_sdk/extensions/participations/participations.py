"""Take part in several runs at the same time: a client for each, and one record of readings.

Each participation is a device of its own to the aggregator: it has an id, a connection, an outbox and a
ledger of sequence numbers. All of them sign with the device's key, read the same sources, and share one
privacy budget and one set of limits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from math import gcd
from typing import Any

import numpy as np

from edge_sdk.app.cli import fields
from edge_sdk.app.clock import Clock
from edge_sdk.client import Client, ClientParts
from edge_sdk.config import PARTICIPATIONS, Config
from edge_sdk.errors import ConfigError
from edge_sdk.forecasting.series import STREAMS, Reading
from edge_sdk.link.transport import Transport
from edge_sdk.privacy.ledger import SUMMED_UNITS, ParticipationCharges
from edge_sdk.privacy.noise_calibration import NoisePlan
from edge_sdk.protocol.contract.manifest import Manifest
from edge_sdk.session.session import Connect
from edge_sdk.training.extension import DeviceExtension
from edge_sdk.training.privacy_accountant import former_charges

logger = logging.getLogger(__name__)


class Participations:
    """The participations of one device; the first is the device's own. Single-threaded."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self.clients = tuple(clients)
        self.main = self.clients[0]

    # --- readings ---------------------------------------------------------------------------------

    def observe(self, reading: Reading) -> None:
        """Record one measurement in every participation.

        A sum of unknown length is one of the device's own bundle: it fills a slot of a coarser grid
        together with others, and none of a finer one.
        """
        self.main.observe(reading)
        if reading.seconds is None and len(self.clients) > 1 and _is_sum(reading.stream):
            reading = replace(reading, seconds=float(self.main.step))
        for client in self.clients[1:]:
            client.observe(reading)

    def observe_all(self, readings: Sequence[Reading]) -> None:
        """Record measurements, oldest first, in every participation."""
        if len(self.clients) == 1:
            self.main.observe_all(readings)
        else:
            for reading in readings:
                self.observe(reading)

    def backfill(self) -> None:
        """Record the device's own readings in the participations that lack them.

        A participation that is new, or that lost the parts of an incomplete slot at a restart, then
        has what the record of the first one contains.
        """
        series = self.main.learner.series
        times = series.times().tolist()
        for client in self.clients[1:]:
            its = client.learner.series
            if its.step % series.step:
                continue  # a slot of a finer grid has no share of a longer one's value
            since = its.newest * its.step if len(its) else -np.inf
            for stream in set(series.streams) & set(its.streams) - client.learner.announced.rows:
                seconds = float(series.step) if _is_sum(stream) else None
                for time, value in zip(times, series.values(stream).tolist(), strict=True):
                    if time >= since and np.isfinite(value):
                        client.observe(Reading(stream, time, value, seconds=seconds))

    def flush(self) -> None:
        for client in self.clients:
            client.flush()

    def remember(self, notes: Mapping[str, bytes]) -> None:
        """Write every participation's readings, then the notes that the sources need."""
        self.flush()
        self.main.remember(notes)

    def remembered(self, name: str) -> bytes | None:
        """Return the note that a source saved before a restart, or None."""
        return self.main.remembered(name)

    def extension(self, name: str) -> DeviceExtension | None:
        """Return a running extension of the device's own participation, or None."""
        return self.main.extension(name)

    @property
    def streams_ahead(self) -> frozenset[str]:
        return frozenset().union(*(client.streams_ahead for client in self.clients))

    @property
    def step(self) -> int:
        """Seconds of a grid that divides the grid of every participation."""
        return gcd(*(client.step for client in self.clients))

    # --- the loop ---------------------------------------------------------------------------------

    def tick(self, timeout: float) -> None:
        """Serve every participation in turn; the waits add up to ``timeout`` seconds at most."""
        for client in self.clients:
            client.tick(timeout / len(self.clients))

    @property
    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return self.main.now

    @property
    def is_settled(self) -> bool:
        """Return whether every run has ended, and its final model was tuned and compared."""
        return all(client.is_settled for client in self.clients)

    @property
    def is_wipe_ordered(self) -> bool:
        """Return whether an operator ordered the erasure of the device's state, in any run."""
        return any(client.is_wipe_ordered for client in self.clients)

    @property
    def is_linked(self) -> bool:
        return all(client.is_linked for client in self.clients)

    @property
    def why_stopped(self) -> str:
        """Reasons why no updates are sent now, with the id of a further participation."""
        whys = [self.main.why_stopped]
        whys += [f"{c.config.id}: {c.why_stopped}" for c in self.clients[1:] if c.why_stopped]
        return "; ".join(filter(None, whys))

    def status(self) -> dict[str, Any]:
        further = {client.config.id: client.status() for client in self.clients[1:]}
        return self.main.status() | ({PARTICIPATIONS: further} if further else {})


@contextmanager
def participating(
    config: Config,
    *,
    stopping: Callable[[], bool] = lambda: False,
    streams: Callable[[Manifest], Container[str]] | None = None,
    transport: Callable[[Config], Transport | Connect | None] = lambda _config: None,
    clock: Clock | None = None,
) -> Iterator[Participations]:
    """Open a client for each participation of a device, and let them share its budgets.

    Args:
        stopping: Called between two minibatches; true abandons the current training.
        transport: Returns the link of a participation, as for ``Client``.
    """
    clients: list[Client] = []

    def stopping_of(number: int) -> Callable[[], bool]:
        def is_stopping() -> bool:
            for other in clients[:number] + clients[number + 1 :]:
                other.serve()
            return stopping()

        return is_stopping

    with ExitStack() as stack:
        for number, one in enumerate(config.participants()):
            client = Client(
                one,
                transport=transport(one),
                clock=clock,
                stopping=stopping_of(number),
                parts=ClientParts(streams=streams),
            )
            clients.append(stack.enter_context(client))
        if len(clients) > 1:
            for client in clients:
                client.identity.share()
        found = Participations(clients)
        if former := former_charges(config):
            logger.info("former participations counted %s", fields(number=len(former)))
        if len(clients) > 1 or former:
            for client in clients:
                refuse_unit(client.learner.mechanism.plan)
                share_budgets(client, [one for one in clients if one is not client], former)
        yield found


def share_budgets(
    client: Client, others: Sequence[Client], former: tuple[ParticipationCharges, ...] = ()
) -> None:
    """Count the others' privacy loss, bytes and wake time against a client's limits.

    The sum holds after a power cut too: each participation writes its charge before an upload leaves,
    and reads its own ledger at its start. Former ones are not configured any more.
    """
    budgets, shared = client.budgets, [one.budgets for one in others]
    budgets.accountant.share(lambda: (*(one.accountant.spending() for one in shared), *former))
    budgets.quota.share(one.quota for one in shared)
    budgets.governor.share(one.governor for one in shared)


def refuse_unit(plan: NoisePlan) -> None:
    """Refuse a claim about a unit that differs between bundles, where several runs share a budget.

    Raises:
        ConfigError: The claim is about a reading or a window.
    """
    if plan.mechanism.name != "none" and plan.limit.unit not in SUMMED_UNITS:
        raise ConfigError(
            f"participation: a claim about a {plan.limit.unit} does not add up over runs whose bundles "
            "have other grids or windows",
            hint=f"privacy.budget.unit: expected {' or '.join(sorted(SUMMED_UNITS))}",
        )


@contextmanager
def of_agent(
    config: Config, *, stopping: Callable[[], bool], streams: Callable[[Manifest], Container[str]]
) -> Iterator[tuple[Participations, tuple[Client, ...]]]:
    """Open the participations of a device with the record of its own one; return also the clients."""
    with participating(config, stopping=stopping, streams=streams) as found:
        found.backfill()
        yield found, found.clients


def _is_sum(stream: str) -> bool:
    return stream in STREAMS and STREAMS[stream].adds
