"""Enrol devices over EST: list serials with one-time passwords, serve, approve, show."""

from __future__ import annotations

import csv
from argparse import Namespace
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from aggregator.audit_log import login_name
from aggregator.commands.arguments import require_database
from aggregator.commands.orders import apply_orders
from aggregator.config import AggregatorConfig, root_of
from aggregator.extensions.authority import certificates as x509
from aggregator.extensions.authority import enrolment
from aggregator.extensions.authority import folder as authority
from aggregator.extensions.authority.authority_replacement import next_authority
from aggregator.extensions.authority.enrolment import EnrolmentPolicy
from aggregator.extensions.authority.est_server import EstServer
from aggregator.extensions.authority.est_service import EstService
from aggregator.extensions.authority.folder import AuthorityError
from aggregator.extensions.authority.record import (
    FILE,
    GRACE,
    EnrolledMember,
    devices_of_former,
    opened,
)
from aggregator.extensions.authority.record_entries import AuthorityAct
from aggregator.extensions.authority.revocation import admit, reload_broker, require_settings
from aggregator.operations.commands import LabelError, parse_labels
from aggregator.operations.control_queue import ControlOrder, leave
from aggregator.operations.run_setup import verified_announcement
from aggregator.store.opener import exists, open_store
from edge_sdk.app.cli import CommandResult, notify, start_logging, stop_signals
from edge_sdk.app.permissions import open_private
from edge_sdk.link.tls_files import qualified, unqualified
from edge_sdk.protocol.messages import KeysMessage
from edge_sdk.protocol.topics import is_device_id

PASSWORD_DAYS = 30.0


def folder_of(args: Namespace) -> Path:
    """Return the authority's folder: --folder, else that of the configuration, else ``ca``."""
    if args.folder is not None:
        return Path(args.folder)
    if Path(args.config).exists():
        named: Path | None = AggregatorConfig.load(args.config).section("ca").folder
        if named is not None:
            return named
    return Path("ca")


def grace_of(args: Namespace) -> timedelta:
    """Return the time in which an expired certificate may be renewed, of the configuration if there is one."""
    if not Path(args.config).exists():
        return GRACE
    return timedelta(days=AggregatorConfig.load(args.config).section("ca").grace_days)


def write_passwords(args: Namespace) -> CommandResult:
    """List the serials of a CSV file, and write a one-time password for each."""
    if not args.name or args.out is None:
        raise AuthorityError("ca passwords: expected a CSV file of serials, and --out")
    folder, now = folder_of(args), _now()
    authority.require_authority(folder)
    serials = _serials(Path(args.name), args.fleet)
    lifetime = timedelta(days=args.days or PASSWORD_DAYS)
    with opened(folder) as record:
        made = enrolment.list_serials(record, serials, now + lifetime, now=now, who=login_name())
    with open_private(args.out, newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("serial", "id", "password"), *made])
    where = f"{args.out}: {len(made)} one-time passwords; only their salted digests are stored"
    text = f"{where}\nvalid until {now + lifetime:%Y-%m-%d}, each for one enrolment"
    return CommandResult({"listed": len(made), "out": str(args.out)}, text)


def _serials(path: Path, fleet: str) -> list[tuple[str, str, str]]:
    """Read the columns serial, id and labels of a CSV file; id is the serial where it is left out."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise AuthorityError(f"ca passwords: {path}: {error}") from error
    found = []
    for number, row in enumerate(rows, 2):
        serial = (row.get("serial") or "").strip()
        device = (row.get("id") or serial).strip()
        labels = (row.get("labels") or "").strip()
        where = f"ca passwords: {path}, line {number}"
        if not (is_device_id(serial) and is_device_id(device)):
            raise AuthorityError(
                f"{where}: {serial or device!r}: expected a serial of letters, digits, - and _",
                hint="the first line names the columns: serial, and optionally id and labels",
            )
        try:
            parse_labels(labels)
            found.append((serial, qualified(fleet, device) if fleet else device, labels))
        except (LabelError, ValueError) as error:
            raise AuthorityError(f"{where}: {error}") from error
    if len({row[0] for row in found}) < len(found) or len({row[1] for row in found}) < len(found):
        raise AuthorityError(f"ca passwords: {path}: a serial or an id stands there twice")
    return found


def serve(args: Namespace) -> CommandResult:
    """Serve EST until a signal."""
    config = require_database(AggregatorConfig.load(args.config))
    section, folder = config.section("ca"), folder_of(args)
    require_settings(config)
    start_logging(config.log.level)
    host, _, port = section.listen.rpartition(":")
    if not port.isdigit():
        raise AuthorityError(f"{config.file.name}: ca.listen: expected host:port")
    hosts = list(section.hosts) or [host.strip("[]")]
    root = partial(_root_of, config)
    root()  # a server that would hand out no root, or a former one, does not start
    policy = EnrolmentPolicy(
        config.fleet, timedelta(days=section.certificate_days), timedelta(days=section.grace_days)
    )
    service = EstService(
        folder, policy, root, _delivery(config), _passphrase(args, config), queue_acts(config)
    )
    if section.reload:
        service.reload_broker = partial(reload_broker, config)
    try:
        server = EstServer((host.strip("[]"), int(port)), service, hosts)
    except (OSError, OverflowError) as error:
        service.close()
        raise AuthorityError(f"{config.file.name}: ca.listen: {section.listen}: {error}") from error
    digest = x509.fingerprint_of(
        authority.load_folder(folder, _passphrase(args, config)).certificate
    )
    url = f"https://{hosts[0]}:{server.server_address[1]}"
    print(f"serving {url}; authority: sha256:{digest}", flush=True)  # noqa: T201 - printed while it runs
    notify("READY=1")
    with stop_signals() as stopping:
        server.run(stopping.is_set)
    return CommandResult({"url": url, "authority": digest}, "stopped")


def _root_of(config: AggregatorConfig) -> str:
    with open_store(config.database, read_only=True) as store:
        verified_announcement(config, store, KeysMessage.kind, KeysMessage)
    return root_of(config).text


def _delivery(config: AggregatorConfig) -> Callable[[list[EnrolledMember]], None]:
    """Return a function that gives members their access rules and queues their enrolments.

    Repeated ones change nothing.
    """

    def deliver(members: list[EnrolledMember]) -> None:
        found = [one for one in members if one.state == "member"]
        admit(config, [unqualified(one.name)[1] for one in found])
        for one in found:
            if one.identity is not None:
                device = unqualified(one.name)[1]
                public = one.identity.hex()
                leave(
                    config.inbox,
                    ControlOrder(
                        "enrol",
                        device,
                        public=public,
                        former="" if one.former is None else one.former.hex(),
                        labels="" if one.former is not None else one.labels,
                        who="est",
                        via="authority",
                        why="enrolled over EST",
                    ),
                )

    return deliver


def queue_acts(config: AggregatorConfig) -> Callable[[list[AuthorityAct]], None]:
    """Return a function that queues the authority's acts for the daemon's audit log."""

    def queue(acts: list[AuthorityAct]) -> None:
        for order in _records(acts):
            leave(config.inbox, order)

    return queue


def pass_acts_on(args: Namespace, folder: Path) -> None:
    """Pass the authority's acts on to the fleet's audit log, if the fleet is on this machine."""
    if not Path(args.config).exists() or not (folder / FILE).exists():
        return
    config = AggregatorConfig.load(args.config)
    if not exists(config.database):
        return
    with opened(folder) as record:
        if acts := record.acts():
            apply_orders(config, _records(acts))
            with record.transaction():
                record.forget_acts(acts)


def _records(acts: list[AuthorityAct]) -> list[ControlOrder]:
    return [
        ControlOrder(
            "record",
            one.subject[:64],
            op=one.act,
            who=one.actor[:64] or "unknown",
            via="authority",
            id=one.id,
            detail=f"{one.detail}{'; ' if one.detail else ''}at {one.at}"[:1000],
        )
        for one in acts
    ]


def approve_member(args: Namespace) -> CommandResult:
    """Approve the renewal of a device whose certificate expired longer ago than the time of grace."""
    if not args.name:
        raise AuthorityError("ca approve: expected a name")
    folder = folder_of(args)
    authority.require_authority(folder)
    name = qualified(args.fleet, args.name) if args.fleet else args.name
    with opened(folder) as record:
        if not enrolment.approve(record, name, _now(), login_name()):
            waiting = ", ".join(one.name for one in record.members() if one.pending) or "none"
            raise AuthorityError(f"ca approve {name}: does not wait; waiting: {waiting}")
    return CommandResult({"approved": name}, f"{name} may renew its certificate within a day")


def show_members(args: Namespace) -> CommandResult:
    """Show listed serials, members, those that wait for approval, and refusals by reason."""
    folder = folder_of(args)
    authority.require_authority(folder)
    following, former = next_authority(folder), []
    with opened(folder) as record:
        listed, members, refused = record.all_listed(), record.members(), record.refusals()
        if following is not None:
            former = devices_of_former(record, following.key_id, _now(), grace_of(args))
    waiting = [one.name for one in members if one.pending]
    data = {
        "listed": len(listed),
        "unused": sum(not one.used for one in listed),
        "members": sum(one.state == "member" for one in members),
        "undelivered": sum(not one.is_delivered for one in members),
        "pending": waiting,
        "refused": refused,
    }
    if following is not None:
        data["replacing"] = {"next": following.name, "devices_of_former": former}
    lines = [
        f"listed {data['listed']}, not yet enrolled {data['unused']}, members {data['members']}",
        f"waiting for approval: {', '.join(waiting) or 'none'}",
        *(f"refused, {reason}: {count}" for reason, count in refused.items()),
    ]
    if following is not None:
        lines.append(f"the authority is being replaced by {following.name!r}")
        lines.append(f"devices with a certificate of the former: {', '.join(former) or 'none'}")
    return CommandResult(data, "\n".join(lines))


def _passphrase(args: Namespace, config: AggregatorConfig | None = None) -> bytes:
    path = args.passphrase_file or (config.section("ca").passphrase_file if config else None)
    return b"" if path is None else bytes(Path(path).read_bytes().strip())


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


# function of each action by name
ACTIONS: Mapping[str, Callable[[Namespace], CommandResult]] = {
    "passwords": write_passwords,
    "serve": serve,
    "approve": approve_member,
    "status": show_members,
}
