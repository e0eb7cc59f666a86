"""Find, start, configure or check an MQTT broker.

gridfed-aggregator broker find                        the broker that `url = "auto"` selects
gridfed-aggregator broker start --kind mosquitto      run one on loopback until SIGTERM
gridfed-aggregator broker config --fleet north --ca ca.pem --cert broker.pem --key broker.key
gridfed-aggregator broker access --file access.acl    rules for the enrolled devices only
gridfed-aggregator broker access --file access.acl --shared    the same, beside other fleets' rules
gridfed-aggregator broker check --file mosquitto.conf settings that lose messages or admit anyone
"""

from __future__ import annotations

import csv
import sys
import time
from argparse import ArgumentParser, Namespace
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from aggregator.brokers import broker_process
from aggregator.brokers.access_changes import (
    denied_users,
    locked_access_file,
    replace_access_file,
    with_denied,
)
from aggregator.brokers.shared_access import fleets_in, joined
from aggregator.commands.arguments import add_config_option
from edge_sdk.app.cli import RUNTIME, USAGE, CommandResult, Failure, stop_signals
from edge_sdk.wire.link.mosquitto_access import mosquitto_access
from edge_sdk.wire.protocol.topics import is_device_id

CHECK = 2.0  # s between two checks of a broker started here


class BrokerCommandError(Failure):
    """Arguments that exclude each other."""

    exit_code = USAGE


def add_arguments(parser: ArgumentParser) -> None:
    """Add the action, and the options of each."""
    parser.add_argument("what", choices=tuple(ACTIONS), help="action")
    parser.add_argument(
        "--kind",
        default="auto",
        choices=("auto", "mosquitto", "embedded"),
        help="start: program to use (auto)",
    )
    parser.add_argument("--port", type=int, default=1883, help="start, config: port (1883)")
    parser.add_argument("--folder", default="broker", help="folder of its files (broker)")
    parser.add_argument("--fleet", default="", help="config: also write this fleet's access rules")
    parser.add_argument(
        "--pairs", metavar="CSV", default="", help="config: client,neighbour pairs that exchange"
    )
    parser.add_argument("--url", default="auto", help="find: an address, or auto (auto)")
    parser.add_argument("--file", default="", help="check: mosquitto.conf; access: target file")
    parser.add_argument("--ca", default="", help="config: authority that signs devices (PEM)")
    parser.add_argument("--cert", default="", help="config: certificate of the broker (PEM)")
    parser.add_argument("--key", default="", help="config: private key of the broker (PEM)")
    parser.add_argument("--crl", default="", help="config: revoked certificates of devices (PEM)")
    parser.add_argument(
        "--worker",
        action="append",
        default=[],
        metavar="NAME",
        help="config, access: name in the certificate of an admission worker; may be repeated",
    )
    parser.add_argument(
        "--shared",
        action="store_true",
        help="config, access: several fleets share the broker; certificates name FLEET.DEVICE",
    )
    add_config_option(parser)


def run(args: Namespace) -> CommandResult:
    """Execute one action."""
    return ACTIONS[args.what](args)


def find_broker(args: Namespace) -> CommandResult:
    """Report the broker that the daemon would use, without leaving one running."""
    with broker_process.find(args.url, folder=Path(args.folder)) as found:
        is_well = found.healthy()
        data = {"kind": found.kind, "url": found.url, "url_v4": found.url_v4, "healthy": is_well}
        state = "responds" if is_well else "does not respond"
        return CommandResult(data, f"{found.sentence} It {state}.", 0 if is_well else RUNTIME)


def start_broker(args: Namespace) -> CommandResult:
    """Start a broker on loopback and keep it running until a signal."""
    with (
        stop_signals() as stopping,
        broker_process.start(args.kind, folder=Path(args.folder), port=args.port) as started,
    ):
        print(started.sentence, flush=True)  # noqa: T201 - printed while it runs, not at its end
        checked_at = time.monotonic()
        while not stopping.is_set():
            time.sleep(0.1)
            if time.monotonic() - checked_at >= CHECK:
                checked_at = time.monotonic()
                if started.ensure():
                    print("broker restarted", file=sys.stderr, flush=True)  # noqa: T201 - as above
    return CommandResult({"kind": started.kind, "url": started.url})


def write_config(args: Namespace) -> CommandResult:
    """Print a Mosquitto configuration and, for a fleet, write its access file beside it."""
    folder = Path(args.folder).absolute()
    files = (args.ca, args.cert, args.key)
    if any(files) and not all(files):
        raise BrokerCommandError("broker config: expected all of --ca, --cert and --key, or none")
    if args.crl and not all(files):
        raise BrokerCommandError("broker config: --crl needs --ca, --cert and --key")
    revoked = Path(args.crl).absolute() if args.crl else None
    tls = None
    if all(files):
        authority, certificate, key = (Path(file).absolute() for file in files)
        tls = broker_process.TlsFiles(authority, certificate, key, revoked)
    access = folder / "access.acl" if args.fleet else None
    try:
        known = () if args.shared else None  # a shared broker's rules list the enrolled devices
        rules = (
            mosquitto_access(
                args.fleet,
                known,
                neighbours=_pairs(args.pairs),
                is_shared=args.shared,
                workers=args.worker,
            )
            if args.fleet
            else ""
        )
        text = broker_process.mosquitto_config(args.port, folder, tls=tls, access=access)
    except ValueError as error:
        raise BrokerCommandError(f"broker config: {error}") from error
    if access is not None:
        folder.mkdir(parents=True, exist_ok=True)
        _write_rules(access, args.fleet, rules, is_shared=args.shared)
    return CommandResult({"config": text, "access": str(access or "")}, text.rstrip())


def write_access_rules(args: Namespace) -> CommandResult:
    """Print or write the access rules of the enrolled devices, and of no other certificate.

    A revoked device has none. Neighbours may write to each other if the run's method has them:
    the configured pairs, or any two devices if the topology follows presence.
    """
    from aggregator.config import AggregatorConfig, settings_of  # noqa: PLC0415 - only this needs a fleet
    from aggregator.ingress.cohort import fits  # noqa: PLC0415 - as below
    from aggregator.methods.base.geo_neighbours import read  # noqa: PLC0415 - as above
    from aggregator.methods.peers.peer_topology import ExchangeSettings  # noqa: PLC0415 - as above
    from aggregator.store.opener import exists, open_store  # noqa: PLC0415 - as above

    config = AggregatorConfig.load(args.config)
    if not exists(config.database):
        raise BrokerCommandError(
            f"broker access: {config.database} does not exist: this fleet is not set up",
            hint=f"gridfed-aggregator init {config.file}",
        )
    with open_store(config.database, read_only=True) as store:
        clients = [one for one in store.clients() if one.state != "revoked"]
    devices, named = [one.id for one in clients], [run for run in config.runs if run.name]
    runs = {one.id: [run.name for run in named if fits(one, run.cohort)] for one in clients}
    near: defaultdict[str, set[str]] = defaultdict(set)
    for view in config.views():
        members = {one.id for one in clients if fits(one, view.run.cohort)}
        settings = settings_of(view)
        if not isinstance(settings, ExchangeSettings):
            continue
        found = {name: members - {name} for name in members}
        if settings.neighbours is not None:
            pairs = read(config.file.parent / settings.neighbours, settings.threshold).pairs
            found = _linked((one, other) for one, other in pairs if {one, other} <= members)
        for name, others in found.items():
            near[name] |= others
    try:
        text = mosquitto_access(
            config.fleet,
            devices,
            neighbours=near,
            is_shared=args.shared,
            runs=runs,
            workers=args.worker,
        )
    except ValueError as error:
        raise BrokerCommandError(f"broker access: {error}") from error
    if args.file:
        _write_rules(Path(args.file), config.fleet, text, is_shared=args.shared)
    shown = f"{args.file}: rules for {len(devices)} devices" if args.file else text.rstrip()
    return CommandResult({"devices": devices, "access": text}, shown)


def _write_rules(path: Path, fleet: str, rules: str, *, is_shared: bool) -> None:
    """Replace a file of access rules at once, for Mosquitto may read it at any time.

    A denial to a revoked device stays, unless the device has rules again. The rules of other fleets
    in it are kept on a shared broker, and a reason to refuse on any other.
    """
    with locked_access_file(path):
        before = path.read_text("utf-8", errors="replace") if path.exists() else ""
        gone = [user for user in denied_users(before, fleet) if f"user {user}\n" not in rules]
        if gone:
            rules = with_denied(rules, fleet, gone)
        if is_shared:
            try:
                rules = joined(before, fleet, rules)
            except ValueError as error:
                raise BrokerCommandError(f"{path}: {error}") from error
        elif named := fleets_in(before) - {fleet}:
            raise BrokerCommandError(
                f"{path}: holds the access rules of fleet {min(named)}, not of {fleet}",
                hint="choose another --folder or --file; or, where the fleets share a broker and "
                "their certificates name FLEET.DEVICE, add --shared",
            )
        replace_access_file(path, rules)


def _pairs(name: str) -> dict[str, set[str]]:
    """Read a CSV with the first line ``client,neighbour``; return none without a file name."""
    if not name:
        return {}
    try:
        rows = list(csv.reader(Path(name).read_text("utf-8").splitlines()))
    except (OSError, UnicodeDecodeError) as error:
        raise BrokerCommandError(f"broker config: --pairs {name}: {error}") from error
    if not rows or rows[0] != ["client", "neighbour"]:
        raise BrokerCommandError(
            f"broker config: --pairs {name}: expected the first line client,neighbour"
        )
    for number, row in enumerate(rows[1:], 2):
        if len(row) != 2 or not all(map(is_device_id, row)):
            raise BrokerCommandError(
                f"broker config: --pairs {name}, line {number}: expected two devices' ids"
            )
    return _linked((row[0], row[1]) for row in rows[1:])


def _linked(pairs: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    near: defaultdict[str, set[str]] = defaultdict(set)
    for one, other in pairs:
        near[one].add(other)
        near[other].add(one)
    return dict(near)


def check_config(args: Namespace) -> CommandResult:
    """Report settings in a mosquitto.conf that would lose messages or admit unknown clients."""
    if not args.file:
        raise BrokerCommandError("broker check: expected --file mosquitto.conf")
    found = broker_process.check_mosquitto_config(Path(args.file))
    text = "\n".join(found) or f"{args.file}: no problem found"
    return CommandResult({"findings": list(found)}, text, RUNTIME if found else 0)


ACTIONS: Mapping[str, Callable[[Namespace], CommandResult]] = {
    "find": find_broker,
    "start": start_broker,
    "config": write_config,
    "access": write_access_rules,
    "check": check_config,
}
"""Function of each action by name."""
