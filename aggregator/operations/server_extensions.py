"""Call the extensions of the daemon: options that the core does not know by name.

An extension is listed in ``aggregator/extensions/index.toml`` and loaded when it is needed: one with
settings when the configuration asks for it; one without when an order or a message of its kinds arrives, or
when an announcement of its kinds is retained. All are called in the order of the index:

    open         when the daemon opens, before its link
    follow       after each reload that is in force
    holds        before a round begins, and in the transaction of each event
    welcomed     a welcome, before it is sent, in the transaction of the hello
    receivers    a verified message of a device, in the transaction of the message
    orders       an order of the operator, which opens its transaction itself
    check_link   a new connection
    receive      in each turn of the loop, before timers: messages that come another way than over the link
    on_turn      in each turn of the loop, after messages and timers; isolated as on_tick
    on_tick      every second, after the runs; each call is a step of its own, isolated from the others
    measure      before the status of each second
    status       for the status document
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from aggregator.config import AggregatorConfig
from aggregator.ingress.flood_control import Subscriptions
from aggregator.ingress.message_ingress import Receiver
from aggregator.operations.control_queue import ControlOrder
from aggregator.operations.status_document import Snapshot
from aggregator.rounds.announcements import Ends
from aggregator.rounds.message_isolation import Isolation
from aggregator.rounds.message_processor import RunDrivers
from edge_sdk.app.extensions import ExtensionEntry
from edge_sdk.link.event_loop import Poller
from edge_sdk.link.transport import LinkUp, Message
from edge_sdk.protocol.keys import Signer
from edge_sdk.protocol.messages import HelloMessage, WelcomeMessage

# executes an order of the folder of orders; returns a one-line result
Order = Callable[[ControlOrder, Path], str]


# admits, journals, applies and saves messages in one commit
Process = Callable[[Sequence[Message]], None]


@dataclass(frozen=True, slots=True)
class ServerParts:
    """Parts of the daemon that an extension uses."""

    isolation: Isolation  # transaction over store and memory
    drivers: RunDrivers  # the runs
    subscriptions: Subscriptions  # to the devices' topics
    ends: Ends  # fleet, and signing key of announcements
    model_signer: Signer  # key of models and their log
    snapshot: Callable[[], Snapshot]  # the present status
    poller: Poller | None  # poller of all links; None unless an extension has a link of its own


class ServerExtension:
    """Base class of an extension of the daemon; each method does nothing unless it is overridden."""

    def __init__(self, parts: ServerParts, config: AggregatorConfig) -> None:
        self.parts, self.config = parts, config

    def open(self) -> None:
        """Start; called when the daemon opens."""

    def follow(self, config: AggregatorConfig) -> None:
        """Apply a checked configuration, which may have switched the extension off."""
        self.config = config

    def welcomed(
        self,
        device: str,  # noqa: ARG002 - of a derived class
        hello: HelloMessage,  # noqa: ARG002 - as above
        welcome: WelcomeMessage,
    ) -> WelcomeMessage:
        """Return the welcome that answers a device's hello, with the extension's fields."""
        return welcome

    def receivers(self) -> Mapping[str, Receiver]:
        """Return class and handler of each message kind; a handler returns the counter's name, or replies."""
        return {}

    def orders(self) -> Mapping[str, Order]:
        """Return the function that executes each order, by the order's name."""
        return {}

    def holds(self, state: Any) -> bool:  # noqa: ANN401, ARG002 - the half's own
        """Return whether the round after a state waits."""
        return False

    def check_link(self, link: LinkUp) -> None:
        """Refuse a connection without the features that the extension needs.

        Raises:
            SettingsError: The broker lacks it.
        """

    def receive(self, process: Process) -> None:
        """Process messages that did not arrive over the link, such as those of a queue."""

    @property
    def next_due(self) -> float | None:
        """Return the time of the next due work, monotonic seconds; None if the loop's own timers suffice."""
        return None

    def on_turn(self) -> None:
        """Serve the extension's links and timers, in transactions of its own."""

    def on_tick(self, now: float) -> None:
        """Run the due work, in transactions of its own; ``now`` is monotonic, in seconds."""

    def measure(self) -> None:
        """Update the gauges."""

    @property
    def obstacle(self) -> str:
        """Fault that keeps devices from this aggregator, with the remedy; empty if none is known."""
        return ""

    def status(self) -> Mapping[str, Any]:
        """Return entries of the status document."""
        return {}

    def close(self) -> None:
        """Close the resources that it has opened."""


class ServerExtensions:
    """The extensions of a running daemon."""

    def __init__(self, parts: ServerParts, config: AggregatorConfig) -> None:
        self._parts, self._config = parts, config
        self._loaded: dict[str, ServerExtension] = {}
        self.follow(config)

    def __iter__(self) -> Iterator[ServerExtension]:
        return (one for _, one in self._named())

    def load(self, config: AggregatorConfig) -> None:
        """Import the extensions that a configuration needs; raise ImportError if one cannot be."""
        for entry in config.index.values():
            if self._is_needed(entry, config):
                entry.load("extension")
            if entry.is_configured(config.tables):
                entry.load("bodies")

    def follow(self, config: AggregatorConfig) -> None:
        """Apply a checked configuration."""
        self._config = config
        for entry in config.index.values():
            if entry.name in self._loaded:
                self._loaded[entry.name].follow(config)
            elif self._is_needed(entry, config):
                self._begun(entry)

    def receiver(self, kind: str) -> Receiver | None:
        """Return the receiver of a message kind: without a class if the extension is not configured."""
        entry = self._entry("kinds", kind)
        if entry is None:
            return None
        found = self._on_demand(entry)
        return (None, None) if found is None else found.receivers()[kind]

    def order(self, name: str) -> Order | None:
        """Return the function that executes an order, or None."""
        entry = self._entry("orders", name)
        found = None if entry is None else self._on_demand(entry)
        return None if found is None else found.orders()[name]

    def holds(self, state: Any) -> bool:  # noqa: ANN401 - the half's own
        """Return whether the round after a state waits for an extension."""
        return any(one.holds(state) for one in self)

    def welcomed(self, device: str, hello: HelloMessage, welcome: WelcomeMessage) -> WelcomeMessage:
        """Return a welcome with what each extension adds."""
        for one in self:
            welcome = one.welcomed(device, hello, welcome)
        return welcome

    def serve(self) -> None:
        """Let each extension serve its links and timers."""
        for entry, one in self._named():
            self._step(entry, one.on_turn)

    def run_periodic(self, now: float) -> None:
        """Run the due work of each extension."""
        for entry, one in self._named():
            self._step(entry, partial(one.on_tick, now))

    def close(self) -> None:
        for one in self:
            one.close()

    def _named(self) -> Iterator[tuple[ExtensionEntry, ServerExtension]]:
        entries = self._config.index.values()
        return ((one, self._loaded[one.name]) for one in entries if one.name in self._loaded)

    def _step(self, entry: ExtensionEntry, action: Callable[[], None]) -> None:
        self._parts.isolation.step(entry.table, action, in_transaction=False)

    def _entry(self, key: str, name: str) -> ExtensionEntry | None:
        rows = self._config.index.values()
        return next((entry for entry in rows if name in entry.row.get(key, ())), None)

    def _on_demand(self, entry: ExtensionEntry) -> ServerExtension | None:
        if entry.name in self._loaded or "section" in entry.row:
            return self._loaded.get(entry.name)
        return self._begun(entry)

    def _begun(self, entry: ExtensionEntry) -> ServerExtension:
        begun: ServerExtension = entry.load("extension")(self._parts, self._config)
        self._loaded[entry.name] = begun
        return begun

    def _is_needed(self, entry: ExtensionEntry, config: AggregatorConfig) -> bool:
        announced = self._parts.isolation.store.announcements
        return "extension" in entry.row and config.needs(entry, announced.get)
