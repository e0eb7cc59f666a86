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
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aggregator.commands.arguments import add_config_option
from aggregator.extensions.authority.access import broker_process
from aggregator.extensions.authority.access.access_changes import (
    locked_access_file,
    replace_access_file,
    users,
)
from aggregator.extensions.authority.access.mosquitto import is_loopback
from aggregator.extensions.authority.access.mosquitto_topics import mosquitto_access
from edge_sdk.app.cli import CommandResult, stop_signals
from edge_sdk.errors import RUNTIME, USAGE, Failure
from edge_sdk.protocol.topics import is_device_id

if TYPE_CHECKING:
    from aggregator.config import AggregatorConfig

PORT, TLS_PORT = 1883, 8883
LOOPBACK, EVERYWHERE = "127.0.0.1", "0.0.0.0"  # noqa: S104 - with client certificates and access rules
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
    parser.add_argument(
        "--port", type=int, default=None, help="start, config: port (1883; config with TLS: 8883)"
    )
    words = "config: address of the listener (0.0.0.0 with TLS and --fleet, else 127.0.0.1)"
    parser.add_argument("--address", default="", help=words)
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
    words = "config, access: name in the certificate of an admission worker; may be repeated"
    parser.add_argument("--worker", action="append", default=[], metavar="NAME", help=words)
    words = "config, access: several fleets share the broker; certificates name FLEET.DEVICE"
    parser.add_argument("--shared", action="store_true", help=words)
    words = "config, access: rules for every certificate of the authority, not by device"
    parser.add_argument("--patterns", action="store_true", help=words)
    add_config_option(parser)


def run(args: Namespace) -> CommandResult:
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
        broker_process.start(
            args.kind, folder=Path(args.folder), port=PORT if args.port is None else args.port
        ) as started,
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
    """Print a Mosquitto configuration and, for a fleet, write its access file."""
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
    found = _access_of(args, folder) if args.fleet else None
    is_open = tls is not None and found is not None
    host = args.address or (EVERYWHERE if is_open else LOOPBACK)
    port = (TLS_PORT if tls else PORT) if args.port is None else args.port
    access = None if found is None else found.path
    try:
        text = broker_process.mosquitto_config(port, folder, host=host, tls=tls, access=access)
    except ValueError as error:
        raise BrokerCommandError(f"broker config: {error}") from error
    if found is not None:
        for place in (folder, found.path.parent):
            place.mkdir(parents=True, exist_ok=True)
        _write_rules(found.path, args.fleet, found.rules, is_shared=found.is_shared)
    chosen = [_listening(host, port, is_tls=tls is not None, has_rules=found is not None)]
    chosen += [] if found is None else found.sentences
    if os.geteuid() == 0 and not is_loopback(host):
        chosen.append(
            f"started by root, Mosquitto changes to user mosquitto, who must be able to read {args.key} "
            f"and {access}, and to write {folder}"
        )
    text = "".join(f"# {line}\n" for line in chosen) + text
    data = {"config": text, "access": str(access or ""), "chosen": chosen}
    return CommandResult(data, text.rstrip())


def _listening(host: str, port: int, *, is_tls: bool, has_rules: bool) -> str:
    link = "TLS with client certificates" if is_tls else "no TLS"
    if not is_loopback(host):
        return f"listens on {host}, port {port}: {link}; --address and --port choose another"
    lacking = [*([] if is_tls else ["--ca, --cert and --key"]), *([] if has_rules else ["--fleet"])]
    needs = (
        f"give {' and '.join(lacking)} to listen for devices" if lacking else "as --address says"
    )
    return f"listens on {host}, port {port}, for this machine only: {link}; {needs}"


@dataclass(frozen=True, slots=True)
class _AccessFile:
    """Access rules for the broker's configuration."""

    path: Path
    rules: str  # its text, of one fleet
    is_shared: bool  # users are named with the fleet
    sentences: tuple[str, ...]  # what was chosen, and what keeps the file up to date


def _access_of(args: Namespace, folder: Path) -> _AccessFile:
    """Return the access rules of a fleet: by device if it is set up here, else by pattern.

    Raises:
        BrokerCommandError: The configuration is of another fleet, or a name is no name.
    """
    from aggregator.config import AggregatorConfig  # noqa: PLC0415 - only a fleet's broker needs it
    from aggregator.extensions.authority.access.access_rules import access_rules  # noqa: PLC0415 - as above
    from aggregator.store.opener import exists, open_store  # noqa: PLC0415 - as above

    pairs = _pairs(args.pairs)
    has_config = Path(args.config).exists() and not args.pairs
    config = AggregatorConfig.load(args.config) if has_config else None
    if config is not None and config.fleet != args.fleet:
        raise BrokerCommandError(
            f"broker config: --fleet {args.fleet}: {config.file} is of fleet {config.fleet}",
            hint=f"name the configuration of {args.fleet}: --config FILE",
        )
    is_shared = args.shared or (config is not None and config.section("ca").shared)
    try:
        if config is None:
            known = () if is_shared else None  # a shared broker's rules list the enrolled devices
            rules = mosquitto_access(
                args.fleet, known, neighbours=pairs, is_shared=is_shared, workers=args.worker
            )
        else:
            clients = []
            if exists(config.database):
                with open_store(config.database, read_only=True) as store:
                    clients = store.devices.all()
            rules = access_rules(
                config,
                clients,
                is_shared=is_shared,
                is_by_pattern=args.patterns,
                workers=args.worker,
            )
    except ValueError as error:
        raise BrokerCommandError(f"broker config: {error}") from error
    path = folder / "access.acl"
    if config is not None and config.section("ca").access_file is not None:
        path = config.section("ca").access_file.absolute()
    return _AccessFile(path, rules, is_shared, _about_rules(args, config, path))


def _about_rules(args: Namespace, config: AggregatorConfig | None, path: Path) -> tuple[str, ...]:
    if config is None:
        who = "no device yet" if args.shared else "every certificate of the authority"
        why = "no configuration of an aggregator is here (--config)"
        why = "--pairs is for a fleet without an aggregator" if args.pairs else why
        return (f"access rules {path}: {who}; {why}",)
    who = "every certificate of the authority" if args.patterns else "the enrolled devices"
    if config.section("ca").access_file is not None and config.section("ca").reload:
        kept = "the daemon keeps them up to date"
    else:
        lacking = [] if config.section("ca").access_file else [f'access_file = "{path}"']
        lacking += (
            [] if config.section("ca").reload else ['reload = ["systemctl", "reload", "mosquitto"]']
        )
        kept = f"for the daemon to keep them up to date, add to [ca] of {config.file.name}: "
        kept += ", ".join(lacking)
    return (f"access rules {path}: {who}", kept)


def write_access_rules(args: Namespace) -> CommandResult:
    """Print or write the access rules of the enrolled devices, and of no other certificate."""
    from aggregator.commands.arguments import require_database  # noqa: PLC0415 - only this needs a fleet
    from aggregator.config import AggregatorConfig  # noqa: PLC0415 - as above
    from aggregator.extensions.authority.access.access_rules import access_rules  # noqa: PLC0415 - as above
    from aggregator.store.opener import open_store  # noqa: PLC0415 - as above

    config = require_database(AggregatorConfig.load(args.config))
    with open_store(config.database, read_only=True) as store:
        clients = store.devices.all()
    is_shared = args.shared or config.section("ca").shared
    try:
        text = access_rules(
            config, clients, is_shared=is_shared, is_by_pattern=args.patterns, workers=args.worker
        )
    except ValueError as error:
        raise BrokerCommandError(f"broker access: {error}") from error
    devices = [one.id for one in clients if one.state != "revoked"]
    shown, data = text.rstrip(), {"devices": devices, "access": text}
    if args.file:
        gone = _write_rules(Path(args.file), config.fleet, text, is_shared=is_shared)
        shown = f"{args.file}: rules for {len(devices)} devices"
        shown += f"; users without rules from now on: {', '.join(gone)}" if gone else ""
        data["removed"] = gone
    return CommandResult(data, shown)


def _write_rules(path: Path, fleet: str, rules: str, *, is_shared: bool) -> list[str]:
    """Replace a fleet's rules in a file at once; return the users who have none in it any more."""
    from aggregator.extensions.authority.access.access_rules import written_anew  # noqa: PLC0415 - as above

    with locked_access_file(path):
        before = path.read_text("utf-8", errors="replace") if path.exists() else ""
        try:
            after = written_anew(before, fleet, rules, is_shared=is_shared)
        except ValueError as error:
            raise BrokerCommandError(
                f"{path}: {error}",
                hint="choose another --folder or --file; or, where the fleets share a broker and "
                "their certificates name FLEET.DEVICE, add --shared",
            ) from error
        replace_access_file(path, after)
    return sorted({*users(before)} - {*users(after)})


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
    near: defaultdict[str, set[str]] = defaultdict(set)
    for one, other in rows[1:]:
        near[one].add(other)
        near[other].add(one)
    return dict(near)


def check_config(args: Namespace) -> CommandResult:
    """Report settings in a mosquitto.conf that would lose messages or admit unknown clients."""
    if not args.file:
        raise BrokerCommandError("broker check: expected --file mosquitto.conf")
    found = [*broker_process.check_mosquitto_config(Path(args.file)), *_outdated_rules(args)]
    text = "\n".join(found) or f"{args.file}: no problem found"
    return CommandResult({"findings": list(found)}, text, RUNTIME if found else 0)


def _outdated_rules(args: Namespace) -> list[str]:
    from aggregator.config import AggregatorConfig  # noqa: PLC0415 - only where a fleet is here
    from aggregator.extensions.authority.access.access_rules import warning  # noqa: PLC0415 - as above

    if not Path(args.config).exists():
        return []
    config = AggregatorConfig.load(args.config)
    found = (warning(config, path) for path in broker_process.access_files(Path(args.file)))
    return [one for one in found if one]


# function of each action by name
ACTIONS: Mapping[str, Callable[[Namespace], CommandResult]] = {
    "find": find_broker,
    "start": start_broker,
    "config": write_config,
    "access": write_access_rules,
    "check": check_config,
}
