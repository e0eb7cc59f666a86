"""Run ``gridfed-aggregator broker``: find or start a broker; write or check its files."""

from __future__ import annotations

import csv
import sys
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from aggregator.brokers import broker_process
from edge_sdk.app.cli import RUNTIME, USAGE, CommandResult, Failure, stop_signals
from edge_sdk.wire.link.mosquitto_access import mosquitto_access
from edge_sdk.wire.protocol.topics import is_device_id

CHECK = 2.0  # s between two checks of a broker started here


class BrokeringError(Failure):
    """Arguments that exclude each other."""

    exit_code = USAGE


def find(args: Namespace) -> CommandResult:
    """Report the broker that the daemon would use, without leaving one running."""
    with broker_process.find(args.url, folder=Path(args.folder)) as found:
        is_well = found.healthy()
        data = {"kind": found.kind, "url": found.url, "url_v4": found.url_v4, "healthy": is_well}
        state = "answers" if is_well else "does not answer"
        return CommandResult(data, f"{found.sentence} It {state}.", 0 if is_well else RUNTIME)


def start(args: Namespace) -> CommandResult:
    """Start a broker on loopback and keep it running until a signal."""
    with (
        stop_signals() as stopping,
        broker_process.start(args.kind, folder=Path(args.folder), port=args.port) as started,
    ):
        print(started.sentence, flush=True)  # noqa: T201 - printed while it runs, not at its end
        looked = time.monotonic()
        while not stopping.is_set():
            time.sleep(0.1)
            if time.monotonic() - looked >= CHECK:
                looked = time.monotonic()
                if started.ensure():
                    print("the broker was started again", file=sys.stderr, flush=True)  # noqa: T201 - as above
    return CommandResult({"kind": started.kind, "url": started.url})


def config(args: Namespace) -> CommandResult:
    """Print a Mosquitto configuration and, for a fleet, write its access file beside it."""
    folder = Path(args.folder).absolute()
    files = (args.ca, args.cert, args.key)
    if any(files) and not all(files):
        raise BrokeringError("broker config: --ca, --cert and --key come together")
    tls = (
        broker_process.TlsFiles(*(Path(file).absolute() for file in files)) if all(files) else None
    )
    access = folder / "access.acl" if args.fleet else None
    try:
        rules = mosquitto_access(args.fleet, neighbours=_pairs(args.pairs)) if args.fleet else ""
        text = broker_process.mosquitto_config(args.port, folder, tls=tls, access=access)
    except ValueError as error:
        raise BrokeringError(f"broker config: {error}") from error
    if access is not None:
        folder.mkdir(parents=True, exist_ok=True)
        access.write_text(rules, "utf-8")
    return CommandResult({"config": text, "access": str(access or "")}, text.rstrip())


def access(args: Namespace) -> CommandResult:
    """Print or write the access rules of the enrolled devices, and of no other certificate.

    A revoked device has none. Neighbours may write to each other if the run's method has them:
    the configured pairs, or any two devices if the topology follows presence.
    """
    from aggregator.config import AggregatorConfig, settings_of  # noqa: PLC0415 - only this needs a fleet
    from aggregator.methods.base.geo_neighbours import read  # noqa: PLC0415 - as above
    from aggregator.methods.peers.peer_topology import ExchangeSettings  # noqa: PLC0415 - as above
    from aggregator.store import SqliteStore  # noqa: PLC0415 - as above

    config = AggregatorConfig.load(args.config)
    if not config.database.exists():
        raise BrokeringError(
            f"broker access: {config.database} is missing", hint="gridfed-aggregator init"
        )
    with SqliteStore.open(config.database, read_only=True) as store:
        devices = [one.id for one in store.clients() if one.state != "revoked"]
    near: dict[str, set[str]] = {}
    settings = settings_of(config)
    if isinstance(settings, ExchangeSettings):
        near = {name: set(devices) - {name} for name in devices}
        if settings.neighbours is not None:
            pairs = read(config.file.parent / settings.neighbours, settings.threshold).pairs
            near = _linked((one, other) for one, other in pairs if {one, other} <= set(devices))
    text = mosquitto_access(config.fleet, devices, neighbours=near)
    if args.file:
        beside = Path(f"{args.file}.part")
        beside.write_text(text, "utf-8")
        beside.replace(args.file)  # Mosquitto may read it at any time
    shown = f"{args.file}: rules for {len(devices)} devices" if args.file else text.rstrip()
    return CommandResult({"devices": devices, "access": text}, shown)


def _pairs(name: str) -> dict[str, set[str]]:
    """Read a CSV with the first line ``client,neighbour``; return none without a file name."""
    if not name:
        return {}
    try:
        rows = list(csv.reader(Path(name).read_text("utf-8").splitlines()))
    except (OSError, UnicodeDecodeError) as error:
        raise BrokeringError(f"broker config: --pairs {name}: {error}") from error
    if not rows or rows[0] != ["client", "neighbour"]:
        raise BrokeringError(f"broker config: --pairs {name}: the first line is client,neighbour")
    for number, row in enumerate(rows[1:], 2):
        if len(row) != 2 or not all(map(is_device_id, row)):
            raise BrokeringError(
                f"broker config: --pairs {name}, line {number}: expected two devices' ids"
            )
    return _linked((row[0], row[1]) for row in rows[1:])


def _linked(pairs: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    near: defaultdict[str, set[str]] = defaultdict(set)
    for one, other in pairs:
        near[one].add(other)
        near[other].add(one)
    return dict(near)


def check(args: Namespace) -> CommandResult:
    """Report settings in a mosquitto.conf that would lose messages or admit unknown clients."""
    if not args.file:
        raise BrokeringError("broker check: give --file mosquitto.conf")
    found = broker_process.check_mosquitto_config(Path(args.file))
    text = "\n".join(found) or f"{args.file}: nothing found"
    return CommandResult({"findings": list(found)}, text, RUNTIME if found else 0)
