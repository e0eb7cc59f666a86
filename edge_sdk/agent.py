"""Run the configured sources and a ``Client`` in one loop, under a service manager."""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from random import Random
from typing import Self

from edge_sdk.app.cli import fields, notify, stop_signals, watchdog_seconds
from edge_sdk.app.clock import SystemClock
from edge_sdk.app.heartbeat import Heartbeat, default_path
from edge_sdk.client import Client
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError
from edge_sdk.forecasting.readiness import channel_sources, unsupplied
from edge_sdk.forecasting.series import Reading
from edge_sdk.limits.resource_governor import limit_memory
from edge_sdk.limits.resource_limits import limits_of
from edge_sdk.outputs import FleetOutput, ThreadedOutput, open_output
from edge_sdk.outputs.issuer import ForecastIssuer
from edge_sdk.participations import Participations, participating
from edge_sdk.session.certificate_files import CertificateFiles
from edge_sdk.session.certificate_monitor import ExpiryReminder
from edge_sdk.session.certificate_renewal import CertificateRenewal, RenewableLink
from edge_sdk.session.followed_authorities import FollowedAuthorities
from edge_sdk.session.identity import erase_identity, key_files
from edge_sdk.session.renewal_schedule import NOTE, RenewalFailure
from edge_sdk.sources import FleetWeatherSource, Source, ThreadedSource, open_source
from edge_sdk.sources.fleet_weather import FleetWeather
from edge_sdk.store.erasure import is_wipe_due, wipe_device
from edge_sdk.wire.contract.manifest import Manifest
from edge_sdk.wire.errors import WireError
from edge_sdk.wire.link.client_names import qualified

logger = logging.getLogger(__name__)

_TURN = 0.5  # longest wait for the network per loop in seconds; bounds the delay of a signal
_STACK = (
    512 * 1024
)  # bytes of a thread's stack; the default of 8 MB counts against the memory limit
_LAST_WORDS = 2.0  # seconds in which the receipt of a wipe leaves; then the state is erased
_NOTE_EVERY = 300.0  # seconds; spares flash; counter registers bridge what is lost


def run(config: Config, *, until_done: bool = False) -> dict[str, object]:
    """Serve until the first SIGTERM or SIGINT; a second one stops at once.

    Args:
        config: Configuration of the device.
        until_done: Also stop when the fleet's run has ended, the final model is in use and compared,
            and the outbox is empty.

    Returns:
        Status at the end.

    Raises:
        EdgeError: The device cannot start.
    """
    if is_wipe_due(config.state, key_files(config)):  # killed before everything was erased
        _wipe(config)
    sources, participants = open_sources(config), config.participants()
    outputs = {one.id: open_outputs(config, one.id) for one in participants}
    limit_memory(limits_of(config.limits).memory)
    threading.stack_size(_STACK)
    restore_certificate(config)
    reminders = [ExpiryReminder(one) for one in participants]
    channels = [ChannelReminder(one) for one in participants]
    heartbeat = Heartbeat(config.heartbeat or default_path(config.state))
    with stop_signals() as signalled:

        def is_stopping() -> bool:
            heartbeat.beat()  # also between two minibatches, and between two readings of a file
            return signalled.is_set()

        streams = partial(streams_given, config)
        with participating(config, stopping=is_stopping, streams=streams) as device:

            def remind() -> None:
                for client, reminder, channel in zip(
                    device.clients, reminders, channels, strict=True
                ):
                    reminder.turn(client.now)
                    channel.turn(client.learner.manifest)

            remind()
            renewal = renewal_of(config, device.main)
            device.backfill()
            weather = FleetWeather(
                tuple(source for source in sources if isinstance(source, FleetWeatherSource)),
                device,
            )
            finite, live = parted(sources)
            read_all(finite, device.observe, is_stopping)
            device.flush()
            with (
                SourceSet(live, device, weather) as source_set,
                ExitStack() as issuing,
            ):
                issuers = [
                    issuing.enter_context(_issuer(outputs[client.config.id], client, source_set))
                    for client in device.clients
                ]
                turns = [remind, *(issuer.turn for issuer in issuers)]
                if renewal is not None:
                    turns.append(lambda: renewal.turn(device.main.now))
                _serve(device, source_set, turns, is_stopping, until_done=until_done)
            notify("STOPPING=1")
            heartbeat.close()
            has_arrived = {"sources": source_set.health()} if source_set.health() else {}
            health = [found for issuer in issuers for found in issuer.health()]
            written = {"outputs": health} if health else {}
            found = device.status() | has_arrived | written | reminders[0].status()
            found |= {} if renewal is None else renewal.status()
        if device.is_wipe_ordered:
            _wipe(config)
        return found


def _wipe(config: Config) -> None:
    """Erase readings, models and keys, as the operator ordered."""
    now = int(SystemClock().wall() / 1000)
    wipe_device(config.state, key_files(config), now, partial(erase_identity, config))
    logger.warning("device wiped %s", fields(state=config.state))


def restore_certificate(config: Config) -> None:
    """Complete the files of a certificate that the device renews, if one is missing or damaged.

    What cannot be restored is reported when the link is made.
    """
    if config.ca.url and config.broker.cert_file is not None:
        with suppress(OSError, WireError):
            CertificateFiles(config.broker.cert_file).restore()


def renewal_of(config: Config, client: Client) -> CertificateRenewal | None:
    """Return the renewal of the device's certificate; None without an EST server or TLS."""
    link, file = client.link, config.broker.cert_file
    is_tls = config.broker.url.startswith("mqtts:")
    if not (config.ca.url and is_tls and file is not None and isinstance(link, RenewableLink)):
        return None

    def prepare() -> Callable[[], object]:
        signed_time = client.server_clock.certificate_time()
        earliest = client.server_clock.earliest_certificate_time()
        signer, former = client.identity.for_request()

        def request() -> None:
            from edge_sdk.session.certificate_enrolment import (  # noqa: PLC0415 - loads HTTP, only to renew
                Enrolment,
            )

            Enrolment(config, config.ca.url, signer, signed_time, former, earliest).request(
                is_renewal=True
            )

        return request

    files, wall = CertificateFiles(file), client.server_clock.best_time
    followed = FollowedAuthorities.of(config.state, config.fleet)

    def is_ordered() -> bool:
        is_request_due = client.identity.is_request_due
        return is_request_due or followed.is_renewal_due(files.present(), time.time())

    def record_issued() -> None:
        client.identity.record_issued()
        followed.record_issued(files.received(), time.time())

    return CertificateRenewal(
        config.id,
        qualified(config.fleet, config.id) if config.ca.shared else config.id,
        files,
        link,
        wall,
        prepare,
        lambda note: client.remember({NOTE: note}),
        Random(secrets.randbits(64)),  # noqa: S311 - spreads load, hides nothing
        RenewalFailure.read(client.remembered(NOTE)),
        is_ordered=is_ordered,
        record_issued=record_issued,
    )


def _issuer(
    outputs: Sequence[ThreadedOutput | FleetOutput], client: Client, source_set: SourceSet
) -> ForecastIssuer:
    """Return the issuer of one participation's forecasts."""
    for output in outputs:
        if isinstance(output, FleetOutput):
            output.send_with(client.send_forecast)
    return ForecastIssuer(outputs, client, source_set.health)


def open_sources(config: Config) -> list[Source]:
    """Create the configured sources.

    Raises:
        ConfigError: An unknown type, or invalid keys.
    """
    return [open_source(row, f"source[{number}]") for number, row in enumerate(config.source)]


def open_outputs(config: Config, participation: str) -> list[ThreadedOutput | FleetOutput]:
    """Create the configured outputs of one participation.

    Args:
        config: Configuration of the device.
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


class ChannelReminder:
    """Logs the channels of the bundle in use that have no source, once for each bundle.

    Args:
        config: Configuration of the device.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._manifest: Manifest | None = None

    def turn(self, manifest: Manifest) -> None:
        """Log the missing channels if this is another bundle than before."""
        if manifest is self._manifest:
            return
        self._manifest = manifest
        given = streams_given(self._config, manifest)
        for lost in unsupplied(channel_sources(manifest, given, self._config.site)):
            found = {"channel": lost.channel, "reads": lost.reads, "why": lost.consequence}
            logger.warning("channel without source %s", fields(bundle=manifest.name, **found))


def parted(sources: Iterable[Source]) -> tuple[list[Source], dict[str, ThreadedSource]]:
    """Separate finite sources from continuous ones; name each of the latter uniquely."""
    live = {
        f"{number} {source.kind}": source
        for number, source in enumerate(sources)
        if isinstance(source, ThreadedSource) and not source.is_finite
    }
    running = {id(source) for source in live.values()}
    return [source for source in sources if id(source) not in running], live


class SourceSet:
    """The continuous sources, open for as long as the agent reads them.

    Args:
        sources: Sources by name.
        client: Participations that observe the readings and store the sources' notes.
        weather: Weather of the fleet, which arrives over the client's own link.
    """

    def __init__(
        self, sources: Mapping[str, ThreadedSource], client: Participations, weather: FleetWeather
    ) -> None:
        self._sources, self._client, self._weather = sources, client, weather
        self._noted = client.now

    def turn(self) -> bool:
        """Pass new readings to the client; save the sources' positions now and then.

        Returns:
            True if anything arrived: then more may be waiting.
        """
        has_arrived = self._weather.turn()
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
        """Return the state of every source."""
        found = [source.health() for source in self._sources.values()]
        return found + self._weather.health()

    def __enter__(self) -> Self:
        """Start every source from its saved position."""
        for name, source in self._sources.items():
            source.on_grid(self._client.step)
            source.start(self._client.remembered(name))
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the sources, record the remaining readings, and save the positions."""
        for source in self._sources.values():
            source.close()
        if self._sources:
            self.turn()
            self.note()


def read_all(
    sources: list[Source],
    observe: Callable[[Reading], object],
    is_stopping: Callable[[], bool] = lambda: False,
) -> Counter[str]:
    """Read every finite source to its end; return the rejected readings, counted by reason."""
    rejected: Counter[str] = Counter()
    for source in parted(sources)[0]:
        for reading in source:
            observe(reading)
            if is_stopping():
                break
        rejected += source.rejected
        for reason, line in getattr(source, "offending", {}).items():
            at = line.partition(":")[0].removeprefix("line ")  # its text has readings in it
            logger.warning("line rejected %s", fields(reason=reason, line=at))
    if rejected:
        reasons = {reason.replace(" ", "_"): count for reason, count in rejected.items()}
        logger.warning("readings rejected %s", fields(**reasons))
    return rejected


def _serve(
    client: Participations,
    source_set: SourceSet,
    turns: Iterable[Callable[[], object]],
    is_stopping: Callable[[], bool],
    *,
    until_done: bool,
) -> None:
    """Read, tick, do the other turns, notify the service manager, and stop when requested."""
    every, notified, is_announced, stopped = watchdog_seconds(), client.now, False, ""
    ordered_at = math.inf  # when the command to wipe the device arrived
    while not is_stopping() and not (until_done and client.is_settled):
        if client.is_wipe_ordered:
            ordered_at = min(ordered_at, client.now)
            if client.now - ordered_at >= _LAST_WORDS:
                return
        client.tick(0.0 if source_set.turn() else _TURN)
        for turn in turns:
            turn()
        if not is_announced and client.is_linked:
            is_announced = notify("READY=1", "STATUS=linked") or True
        if client.why_stopped != stopped:
            stopped = client.why_stopped
            notify(f"STATUS=not participating: {stopped}" if stopped else "STATUS=linked")
        if every is not None and client.now - notified >= every:
            notified = client.now
            notify("WATCHDOG=1")
