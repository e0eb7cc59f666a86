"""Define what an output is: it receives reports of the agent and writes them somewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from edge_sdk.forecasting.issued_forecast import IssuedForecast


@dataclass(frozen=True, slots=True, eq=False)
class AgentReport:
    """The newest forecast of a device, and the state of its agent.

    Attributes:
        issued: Newest forecast.
        status: State of the client, as ``Client.status`` returns it.
        sources: State of every continuous source, as ``ThreadedSource.health`` returns it.
        outputs: State of every output.
    """

    issued: IssuedForecast
    status: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    sources: tuple[Mapping[str, Any], ...] = ()
    outputs: tuple[Mapping[str, Any], ...] = ()


class OutputSink(Protocol):
    """The blocking end of an output. All methods are called by one thread, never the agent's."""

    def send(self, report: AgentReport, *, is_new: bool) -> bool:
        """Write a report.

        Args:
            report: The newest report; earlier ones may have been skipped.
            is_new: False if only the state of the agent has changed, not the forecast.

        Returns:
            False if it cannot be written now and must be passed again.

        Raises:
            OSError: It cannot be written; it is passed again later.
        """

    def serve(self, patience: float) -> None:
        """Do what is due between two reports, for at most so many seconds.

        Raises:
            OSError: The output does not work.
        """

    def close(self) -> None:
        """Write what must be written at the end, and free every resource."""
