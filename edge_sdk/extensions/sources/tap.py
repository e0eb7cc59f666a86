"""Run the OCPP proxy between a charger and its back office (CSMS), and record measured values.

Forwards every byte. Prints the address to configure in the charger. It is a process of its own, so
that the agent can stop without it. It records energy and time; tokens that identify a driver are
removed.

  gridfed-edge tap charger.toml
"""

from __future__ import annotations

import asyncio
import signal
import ssl
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path

from edge_sdk.app.cli import CommandResult, notify, start_logging
from edge_sdk.app.settings import from_table
from edge_sdk.commands import add_config, add_log
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError, EdgeError
from edge_sdk.extensions.sources.byte_links import SourceAddress
from edge_sdk.extensions.sources.ocpp_proxy import BackOffice, OcppProxy
from edge_sdk.extensions.sources.ocpp_source import OcppSection
from edge_sdk.extensions.sources.spool import SpoolWriter
from edge_sdk.link.tls_files import load


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    add_config(parser)
    parser.add_argument(
        "--source", type=int, metavar="N", help="number of the source, if there are several"
    )
    add_log(parser)


def run(args: Namespace) -> CommandResult:
    """Forward until a signal; return the counters."""
    start_logging(args.log)
    section = section_of(Config.load(args.config), args.source)
    counts = forward(section, _print)
    return CommandResult(counts, ", ".join(f"{what} {count}" for what, count in counts.items()))


def _print(url: str) -> None:
    print(url, flush=True)  # noqa: T201 - a command's own standard output


def section_of(config: Config, number: int | None) -> OcppSection:
    """Return the ``[[source]]`` section of the tap.

    Raises:
        Failure: There is none, or several and none is selected.
    """
    rows = [(n, row) for n, row in enumerate(config.source) if row.get("type") == "ocpp"]
    selected = [row for n, row in rows if number in (None, n)]
    if len(selected) != 1:
        raise ConfigError(
            f"{len(selected)} [[source]] of type ocpp selected, expected 1; configured: {len(rows)}",
            hint="select one by its number: --source 1",
        )
    section = from_table(OcppSection, selected[0], "source ocpp")
    if not section.spool or not section.csms:
        raise ConfigError("source ocpp: the proxy needs the keys 'csms' and 'spool'")
    return section


def forward(section: OcppSection, ready: Callable[[str], object]) -> dict[str, int]:
    """Forward chargers to their back office until SIGTERM or SIGINT.

    Args:
        section: Listening address, back office address and spool folder.
        ready: Called with the address once chargers may connect.

    Returns:
        Counters of recorded and ignored messages.

    Raises:
        EdgeError: The port is taken, or a certificate cannot be used.
    """
    office = BackOffice.parse(section.csms, Path(section.ca_file) if section.ca_file else None)
    tap = OcppProxy(office, SpoolWriter(Path(section.spool), "ocpp", section.spool_bytes))
    address = SourceAddress.parse(section.listen)
    try:
        asyncio.run(_serve(tap, address, _server_tls(section), ready))
    except OSError as error:
        raise EdgeError(f"{section.listen}: {error.strerror or error}") from error
    return dict(tap.counts)


async def _serve(
    tap: OcppProxy,
    address: SourceAddress,
    tls: ssl.SSLContext | None,
    ready: Callable[[str], object],
) -> None:
    def when_ready(url: str) -> None:
        notify("READY=1", f"STATUS={url}")
        ready(url)

    serving = asyncio.create_task(tap.serve(address.host, address.port, when_ready, tls))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, serving.cancel)
    try:
        await serving
    except asyncio.CancelledError:
        notify("STOPPING=1")


def _server_tls(section: OcppSection) -> ssl.SSLContext | None:
    if not section.cert_file:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        return load(context, cert=section.cert_file, key=section.key_file or None)
    except OSError as error:
        raise ConfigError(f"source ocpp: {error}") from error
