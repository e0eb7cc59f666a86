"""Issue forecasts, and pass them and the agent's state to outputs; none of them can stop the agent."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import field
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from edge_sdk.agent import SourceHealth
from edge_sdk.app.cli import fields
from edge_sdk.app.extensions import ExtensionIndex, PluginRegistry
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.app.settings import from_table
from edge_sdk.client import Client
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError, StoreFull
from edge_sdk.forecasting.forecast import IssuedForecast
from edge_sdk.protocol.messages import ProtocolMessage
from edge_sdk.runtime import GraphError

logger = logging.getLogger(__name__)

_STATUS_EVERY = 15.0  # seconds between two reports of the agent's state
_FAREWELL = 5.0  # seconds for all outputs to end; a service manager allows some twenty
_UNUSABLE = (
    GraphError,
    StoreFull,
    MemoryError,
    ValueError,
    ArithmeticError,
    LookupError,
    TypeError,
)
"""Errors of a forecast that leave everything else of the agent usable."""


@dataclass(frozen=True, slots=True, eq=False)
class AgentReport:
    """The newest forecast of a device, and the state of its agent."""

    issued: IssuedForecast
    # state of the client, as ``Client.status`` returns it
    status: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    # state of every continuous source, as ``LiveSource.health`` returns it
    sources: tuple[Mapping[str, Any], ...] = ()
    outputs: tuple[Mapping[str, Any], ...] = ()


class ForecastingClient(Protocol):
    """The part of ``Client`` that an issuer uses."""

    @property
    def now(self) -> float:
        """Seconds of the monotonic clock."""

    def forecast_marks(self) -> tuple[object, ...]:
        """Return the inputs of a forecast; a new one is due when any of them changes."""

    def issue(self) -> IssuedForecast:
        """Forecast, with origin, issue time, model version and quality."""

    def status(self) -> dict[str, Any]:
        """Return the client's state."""

    def send_forecast(self, forecast: ProtocolMessage) -> bool:
        """Send a forecast to the fleet; return False if nothing may be sent now."""


class OutputPlace(NamedTuple):
    """Place of an output in a configuration."""

    number: int
    device: str  # id of the participation that forecasts
    is_private: bool  # whether a privacy mechanism is configured

    @property
    def where(self) -> str:
        """Name of its section in messages."""
        return f"output[{self.number}]"


class Output(Protocol):
    """A receiver of reports. No method raises or blocks."""

    name: str  # number and type, for the log
    interval: float  # shortest time between two forecasts, in seconds

    def start(self, client: ForecastingClient) -> None:
        """Start writing reports."""

    def submit(self, report: AgentReport, *, is_new: bool) -> None:
        """Pass a report on; ``is_new`` if its forecast is new."""

    def health(self) -> dict[str, Any]:
        """Return the state of the output, without any value."""

    def stop(self) -> None:
        """Request the end; returns at once."""

    def close(self, patience: float) -> None:
        """Wait for the end, at most ``patience`` seconds."""


S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class OutputType(Generic[S]):
    """One type of output: the class of its section, and the function that creates it."""

    section: type[S]
    open: Callable[[S, OutputPlace], Output]


OUTPUTS: PluginRegistry[OutputType[Any]] = PluginRegistry(
    {}, "gridfed.outputs", listed=ExtensionIndex("edge_sdk").loaders("outputs")
)
"""Types of outputs of a configuration: ``[[output]] type = "file"``."""


def open_output(
    section: Mapping[str, Any], number: int, device: str, *, is_private: bool = False
) -> Output:
    """Create one configured output; nothing of it is opened yet.

    Args:
        section: ``[[output]]`` section of the configuration, with absolute paths.

    Raises:
        Failure: An unknown type, or invalid keys.
    """
    place, kind = OutputPlace(number, device, is_private), str(section.get("type", ""))
    if kind not in OUTPUTS:
        known = ", ".join(OUTPUTS)
        raise ConfigError(f"{place.where}.type: unknown {kind!r}; known: {known}")
    found = OUTPUTS[kind]
    return found.open(from_table(found.section, section, place.where), place)


class ForecastIssuer:
    """Issues a forecast when a reading, a model or the served candidate is new.

    Args:
        outputs: Outputs, not started yet.
        sources: Returns the state of the continuous sources.
    """

    def __init__(
        self,
        outputs: Sequence[Output],
        client: ForecastingClient,
        sources: SourceHealth = tuple,
    ) -> None:
        self._outputs, self._client, self._sources = outputs, client, sources
        self._marks: tuple[object, ...] | None = None
        self._is_stale = True
        self._issued: IssuedForecast | None = None
        self._pending: set[str] = set()
        self._not_before: dict[str, float] = {}
        self._stated = -float("inf")
        self._failing = ""

    def turn(self) -> None:
        """Issue a forecast if one is due; report the agent's state now and then. Never raises."""
        if not self._outputs:
            return
        now, marks = self._client.now, self._client.forecast_marks()
        if marks != self._marks:
            self._marks, self._is_stale = marks, True
            self._pending = {output.name for output in self._outputs}
        ready = {name for name in self._pending if self._not_before.get(name, now) <= now}
        if ready and self._is_stale:
            self._issue()
            self._is_stale = False
        if self._issued is None or not (ready or now - self._stated >= _STATUS_EVERY):
            return
        self._stated = now
        self._report(self._issued, ready)
        self._pending -= ready
        self._not_before |= {x.name: now + x.interval for x in self._outputs if x.name in ready}

    def _report(self, issued: IssuedForecast, ready: set[str]) -> None:
        sources, outputs = tuple(self._sources()), tuple(self.health())
        report = AgentReport(issued, self._client.status(), sources, outputs)
        for output in self._outputs:
            output.submit(report, is_new=output.name in ready)

    def health(self) -> list[dict[str, Any]]:
        return [output.health() for output in self._outputs]

    def _issue(self) -> None:
        try:
            self._issued = self._client.issue()
        except _UNUSABLE as error:
            why = str(error) or type(error).__name__
            if why != self._failing:
                self._failing = why
                logger.warning("forecast not issued %s", fields(why=why))
        else:
            self._failing = ""

    def __enter__(self) -> Self:
        for output in self._outputs:
            output.start(self._client)
        return self

    def __exit__(self, *_: object) -> None:
        """Write the last forecast, and stop every output, within a few seconds for all together."""
        for output in self._outputs:
            output.stop()
        end = time.monotonic() + _FAREWELL
        for output in self._outputs:
            output.close(max(0.0, end - time.monotonic()))


class AgentOutputs:
    """The outputs of one agent, for every participation."""

    def __init__(self, config: Config, clients: Sequence[Client], sources: SourceHealth) -> None:
        self._ending = ExitStack()
        self._issuers = [
            ForecastIssuer(open_outputs(config, client.config.id), client, sources)
            for client in clients
        ]
        self._is_started = False

    @staticmethod
    def prepare(config: Config) -> None:
        """Refuse an output of an unknown type, with invalid keys, or of an unknown participation."""
        for one in config.participants():
            open_outputs(config, one.id)

    def turn(self) -> None:
        """Issue the forecasts that are due; the outputs start with the first call."""
        if not self._is_started:
            self._is_started = True
            for issuer in self._issuers:
                self._ending.enter_context(issuer)
        for issuer in self._issuers:
            issuer.turn()

    def close(self) -> None:
        """Write the last forecasts, and stop the outputs that have started."""
        with self._ending:
            self._is_started = False

    def status(self) -> dict[str, object]:
        return {"outputs": [found for issuer in self._issuers for found in issuer.health()]}


def open_outputs(config: Config, participation: str) -> list[Output]:
    """Create the configured outputs of one participation.

    Args:
        participation: Id of the participation that forecasts.

    Raises:
        ConfigError: An unknown type or participation, or invalid keys.
    """
    is_private = config.privacy.mechanism.name != "none"
    ids = [one.id for one in config.participants()]
    found = []
    for number, row in enumerate(config.output):
        of = row.get("participation") or config.id
        if of not in ids:
            raise ConfigError(
                f"output[{number}].participation: unknown {of!r}; known: {', '.join(ids)}"
            )
        if of == participation:
            found.append(open_output(row, number, of, is_private=is_private))
    return found
