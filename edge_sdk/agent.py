"""Run the configured sources and a ``Client`` in one loop, under a service manager."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Protocol, Self

from edge_sdk.app.cli import fields, notify, stop_signals, watchdog_seconds
from edge_sdk.app.sqlite_file import SqliteError
from edge_sdk.client import Client, ClientParts
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError, EdgeError
from edge_sdk.forecasting.forecast import moment
from edge_sdk.limits import limits_of
from edge_sdk.limits.resource_governor import is_out_of_memory, limit_memory, spare_native_memory
from edge_sdk.protocol.contract.manifest import Manifest
from edge_sdk.session.identity import key_files
from edge_sdk.sources import (
    LinkedSource,
    LiveSource,
    Source,
    SourceFeed,
    open_source,
    parted,
    read_all,
)
from edge_sdk.store import is_wipe_due
from edge_sdk.store.schema import FILE, store_error
from edge_sdk.training.privacy_accountant import former_charges

logger = logging.getLogger(__name__)

_TURN = 0.5  # longest wait for the network per loop in seconds; bounds the delay of a signal
_LAST_WORDS = 2.0  # seconds in which the receipt of a wipe leaves; then the state is erased
_MORE = "raise limits.memory_mb; `gridfed-edge check CONFIG` finds how much is needed"
SourceHealth = Callable[[], Sequence[Mapping[str, object]]]
_NOTE_EVERY = 300.0  # seconds; spares flash; counter registers bridge what is lost


def run(config: Config, *, until_done: bool = False) -> dict[str, object]:
    """Serve until the first SIGTERM or SIGINT; a second one stops at once.

    Args:
        until_done: Also stop when the fleet's run has ended, the final model is in use and compared,
            and the outbox is empty; alone, when the device has learned from its readings.

    Returns:
        Status at the end.

    Raises:
        EdgeError: The device cannot start, or its limit of memory does not suffice.
    """
    try:
        return _run(config, until_done=until_done)
    except Exception as error:
        if isinstance(error, SqliteError):
            raise store_error(config.state / FILE, error) from error
        limit = limits_of(config.limits).memory
        if limit is None or not is_out_of_memory(error):
            raise
        sentence = f"limits: {limit // 2**20} MiB of data do not suffice to start: {error}"
        raise ConfigError(sentence, hint=_MORE) from error


def _run(config: Config, *, until_done: bool) -> dict[str, object]:
    if is_wipe_due(config.state, key_files(config)):  # killed before everything was erased
        _erase(config)
    if config.is_alone:
        logger.info("runs alone %s", fields(do="to join a fleet, add [broker] and keys.root"))
    sources = open_sources(config)
    limit_memory(limits_of(config.limits).memory)
    spare_native_memory()
    extensions = prepared_extensions(config)
    records = (entry.load("beat")(config) for entry in config.index.having("beat"))
    heartbeat: LoopRecord = next(records, LoopRecord())
    with stop_signals() as signalled:

        def is_stopping() -> bool:
            heartbeat.beat()  # also between two minibatches, and between two readings of a file
            return signalled.is_set()

        streams = partial(streams_given, config)
        with opened_device(config, stopping=is_stopping, streams=streams) as (device, clients):
            feeds = [one.over_link(device) for one in sources if isinstance(one, LinkedSource)]
            finite, live = parted(sources)
            source_set = SourceSet(live, device, feeds)
            running = [one(config, clients, source_set.health) for one in extensions]
            read_all(finite, device.observe_all, is_stopping)
            device.flush()
            if finite:
                newest = moment(clients[0].newest_reading)
                read = clients[0].counts.get("readings new", 0)
                logger.info(
                    "files read %s", fields(files=len(finite), readings=read, newest=newest)
                )
            with source_set, ExitStack() as ended:
                for one in running:
                    ended.callback(one.close)
                try:
                    _serve(
                        device,
                        source_set,
                        [one.turn for one in running],
                        is_stopping,
                        until_done=until_done,
                        is_alone=config.is_alone,
                    )
                except MemoryError as error:
                    raise EdgeError("the limit of memory was reached", hint=_MORE) from error
            notify("STOPPING=1")
            heartbeat.close()
            has_arrived = {"sources": source_set.health()} if source_set.health() else {}
            found = device.status() | has_arrived
            found |= {key: value for one in running for key, value in one.status().items()}
        if device.is_wipe_ordered:
            _erase(config)
        return found


def _erase(config: Config) -> None:
    for entry in config.index.having("erase"):
        entry.load("erase")(config)
        logger.warning("device wiped %s", fields(state=config.state))


class LoopRecord:
    """Liveness of the agent's loop; an extension records it in a file that other programs can read."""

    def beat(self) -> None:
        """Record that the loop runs, every few seconds at most."""

    def close(self) -> None:
        """Record the end."""


@contextmanager
def opened_device(
    config: Config, *, stopping: Callable[[], bool], streams: Callable[[Manifest], Container[str]]
) -> Iterator[tuple[Client, tuple[Client, ...]]]:
    """Open the client of a device, and the clients of all its participations.

    An extension combines the clients of several participations into one.

    Raises:
        ConfigError: There are several, perhaps former, and no extension for them.
    """
    if not (config.participation or former_charges(config)):
        with Client(config, stopping=stopping, parts=ClientParts(streams=streams)) as client:
            yield client, (client,)
        return
    opening = next(filter(None, (one.load("device") for one in config.index.values())), None)
    if opening is None:
        raise ConfigError("participation: the extension for several runs is not installed")
    with opening(config, stopping=stopping, streams=streams) as found:
        yield found


class AgentExtension(Protocol):
    """The part of an extension that the agent runs.

    Args:
        clients: Of every participation; the first is the device's own.
        sources: Returns the state of the continuous sources.
    """

    def __init__(
        self, config: Config, clients: Sequence[Client], sources: SourceHealth
    ) -> None: ...

    @staticmethod
    def prepare(config: Config) -> None:
        """Prepare the agent before the link is opened."""

    def turn(self) -> None:
        """Run the due work; called first when the files have been read."""

    def close(self) -> None:
        """End, before the sources and the link do; also after an error."""

    def status(self) -> dict[str, object]:
        """Return the state at the end."""


def prepared_extensions(config: Config) -> list[type[AgentExtension]]:
    """Prepare and return the agent's part of every configured extension that has one, in order."""
    entries = config.index.configured(config.tables)
    found: list[type[AgentExtension]] = [e.load("agent") for e in entries if "agent" in e.row]
    for one in found:
        one.prepare(config)
    return found


def open_sources(config: Config) -> list[Source]:
    """Create the configured sources.

    Raises:
        ConfigError: An unknown type, or invalid keys.
    """
    return [open_source(row, f"source[{number}]") for number, row in enumerate(config.source)]


def streams_given(config: Config, manifest: Manifest) -> dict[str, str]:
    """Return the source of each stream by name, as the configuration lists them.

    Without a configured source the calling program records the readings: then every needed stream
    counts as given, and no optional one.

    Raises:
        ConfigError: An unknown type of source, or invalid keys.
    """
    if not config.source:
        return dict.fromkeys(manifest.required_streams, "the calling program")
    found: dict[str, str] = {}
    for number, source in enumerate(open_sources(config)):
        for stream in source.streams:
            found.setdefault(stream, f"source[{number}], {config.source[number].get('type', '')}")
    return found


class SourceSet:
    """The continuous sources, open for as long as the agent reads them.

    Args:
        client: Client that observes the readings and stores the sources' notes.
        feeds: Sources that arrive over the client's own link.
    """

    def __init__(
        self, sources: Mapping[str, LiveSource], client: Client, feeds: Sequence[SourceFeed]
    ) -> None:
        self._sources, self._client, self._feeds = sources, client, feeds
        self._noted = client.now

    def turn(self) -> bool:
        """Pass new readings to the client; save the sources' positions now and then.

        Returns:
            True if anything arrived: then more may be waiting.
        """
        has_arrived = False
        for feed in self._feeds:
            has_arrived |= feed.turn()
        for source in self._sources.values():
            for reading in source.poll():
                self._client.observe(reading)
                has_arrived = True
        if self._sources and self._client.now - self._noted >= _NOTE_EVERY:
            self.note()
        return has_arrived

    def note(self) -> None:
        """Save the notes that the sources need after a restart."""
        self._noted = self._client.now
        self._client.remember({name: source.saved() for name, source in self._sources.items()})

    def health(self) -> list[dict[str, object]]:
        found = [source.health() for source in self._sources.values()]
        return found + [feed.health() for feed in self._feeds]

    def __enter__(self) -> Self:
        for name, source in self._sources.items():
            source.on_grid(self._client.step)
            source.start(self._client.remembered(name))
        return self

    def __exit__(self, *_: object) -> None:
        for source in self._sources.values():
            source.close()
        if self._sources:
            self.turn()
            self.note()


def _serve(
    client: Client,
    source_set: SourceSet,
    turns: Iterable[Callable[[], object]],
    is_stopping: Callable[[], bool],
    *,
    until_done: bool,
    is_alone: bool,
) -> None:
    every, notified, is_announced, stopped = watchdog_seconds(), client.now, False, ""
    linked = "runs alone" if is_alone else "linked"
    ordered_at = math.inf  # when the command to wipe the device arrived
    while not is_stopping() and not (until_done and client.is_settled):
        if client.is_wipe_ordered:
            ordered_at = min(ordered_at, client.now)
            if client.now - ordered_at >= _LAST_WORDS:
                return
        client.tick(0.0 if source_set.turn() else _TURN)
        for turn in turns:
            turn()
        if not is_announced and (is_alone or client.is_linked):
            is_announced = notify("READY=1", f"STATUS={linked}") or True
        if client.why_stopped != stopped:
            stopped = client.why_stopped
            notify(f"STATUS=not participating: {stopped}" if stopped else f"STATUS={linked}")
        if every is not None and client.now - notified >= every:
            notified = client.now
            notify("WATCHDOG=1")
