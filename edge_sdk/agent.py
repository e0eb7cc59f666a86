"""The installed program: configured sources and a Client in one loop, under a service manager."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from edge_sdk.client import Client
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError
from edge_sdk.program import fields, notify, stop_signals, watchdog_seconds
from edge_sdk.series import Reading
from edge_sdk.sources import SOURCES, Source

logger = logging.getLogger(__name__)

_TURN = 0.5  # seconds one turn waits for the network at most: how soon a signal is heard


def run(config: Config, *, until_done: bool = False) -> dict[str, object]:
    """Serve until the first SIGTERM or SIGINT; a second one stops at once.

    Args:
        config: What the device is told.
        until_done: Leave also when the fleet's run has ended, the final model is taken over and
            nothing is owed.

    Returns:
        The last status.

    Raises:
        EdgeError: The device cannot start.
    """
    sources = open_sources(config)
    with stop_signals() as stopping, Client(config, stopping=stopping.is_set) as client:
        read_all(sources, client.observe, stopping.is_set)
        client.flush()
        _serve(client, stopping.is_set, until_done=until_done)
        notify("STOPPING=1")
        return client.status()


def open_sources(config: Config) -> list[Source]:
    """Make the configured sources.

    Raises:
        ConfigError: An unknown type, or keys that do not fit.
    """
    made = []
    for number, section in enumerate(config.source):
        kind = str(section.get("type", ""))
        if kind not in SOURCES:
            known = ", ".join(sorted(SOURCES))
            raise ConfigError(f"source[{number}].type: unknown {kind!r}; known: {known}")
        made.append(SOURCES[kind](section))
    return made


def read_all(
    sources: list[Source],
    observe: Callable[[Reading], object],
    is_stopping: Callable[[], bool] = lambda: False,
) -> Counter[str]:
    """Read every source to its end; return what they rejected, by reason."""
    rejected: Counter[str] = Counter()
    for source in sources:
        for reading in source:
            observe(reading)
            if is_stopping():
                break
        rejected += source.rejected
    if rejected:
        reasons = {reason.replace(" ", "_"): count for reason, count in rejected.items()}
        logger.warning("readings rejected %s", fields(**reasons))
    return rejected


def _serve(client: Client, is_stopping: Callable[[], bool], *, until_done: bool) -> None:
    """The loop: tick, tell the service manager, leave when asked."""
    every, told, is_announced, stopped = watchdog_seconds(), client.now, False, ""
    while not is_stopping() and not (until_done and client.is_done):
        client.tick(_TURN)
        if not is_announced and client.is_linked:
            is_announced = notify("READY=1", "STATUS=linked") or True
        if client.why_stopped != stopped:
            stopped = client.why_stopped
            notify(f"STATUS=answers nothing: {stopped}" if stopped else "STATUS=linked")
        if every is not None and client.now - told >= every:
            told = client.now
            notify("WATCHDOG=1")
