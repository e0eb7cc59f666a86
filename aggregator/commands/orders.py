"""Apply an operator's orders to the database, or queue them for the daemon that has it open.

The subcommands that give nothing but an order are here, too.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import replace
from typing import ClassVar, Literal

from aggregator.audit_log import AuditLog, login_name
from aggregator.commands.arguments import (
    CommandError,
    add_config,
    add_config_option,
    add_root_key,
    add_run,
    add_why,
    check_run_name,
    require_database,
)
from aggregator.config import AggregatorConfig
from aggregator.operations.commands import (
    OrderError,
    check_args,
    label_text,
    parse_labels,
    refuse_unlearning,
)
from aggregator.operations.control_queue import (
    ControlOrder,
    KnownDevices,
    check_orders,
    leave,
    renewal,
    waiting,
)
from aggregator.operations.order_executor import apply_recorded
from aggregator.operations.signing_keys import root_signers, signer
from aggregator.store.errors import DatabaseBusyError
from aggregator.store.opener import open_store
from edge_sdk.app.cli import CommandResult
from edge_sdk.app.clock import DAY, SystemClock
from edge_sdk.protocol.keys import kid_of
from edge_sdk.protocol.messages import RELEASES_LIMIT
from edge_sdk.protocol.statements import COMMANDS, command_statement

WHY_LIMIT = 200  # characters that an order carries
DAYS = 30  # for which the root's signature holds, unless --days says otherwise
LONGEST = 400  # days for which it may hold: as long as the list of keys


def apply_orders(config: AggregatorConfig, orders: list[ControlOrder]) -> CommandResult:
    """Apply orders here or queue them for the daemon with the database: all, or none with OrderError."""
    require_database(config)
    if any(len(order.why) > WHY_LIMIT for order in orders):
        raise OrderError(f"--why: expected at most {WHY_LIMIT} characters")
    who = login_name()[:64]
    orders = [replace(order, who=order.who or who) for order in orders]
    try:
        with open_store(config.database) as store:
            audit_log = AuditLog(store, config.fleet, signer(config))
            check_orders(orders, store)
            is_enrolment = all(order.do == "enrol" for order in orders)
            known = KnownDevices(store.devices.all()) if is_enrolment else None
            with store.transaction():
                done = [apply_recorded(order, store, audit_log, known) for order in orders]
    except DatabaseBusyError:
        queued = [order for _, order in waiting(config.inbox) if order is not None]
        with open_store(config.database, read_only=True) as store:
            check_orders(orders, store, queued)
            notes = [renewal(order, store) for order in orders]
        for order in orders:
            leave(config.inbox, order)
        done = [
            f"{order.do} {order.device}: queued for the running daemon{more}"
            for order, more in zip(orders, notes, strict=True)
        ]
    return CommandResult({"done": done}, "\n".join(done))


class _RunOrder:
    do: ClassVar[Literal["pause", "resume", "round"]]
    scope: ClassVar[str]

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        add_config(parser)
        add_run(parser, cls.scope)
        add_why(parser)

    @classmethod
    def run(cls, args: Namespace) -> CommandResult:
        config = AggregatorConfig.load(args.config)
        order = ControlOrder(cls.do, "_all", run=check_run_name(args.run, config), why=args.why)
        return apply_orders(config, [order])


class Pause(_RunOrder):
    """Pause training in the whole fleet; devices keep forecasting.

    The pause holds over restarts, until `resume`.

      gridfed-aggregator pause aggregator.toml
      gridfed-aggregator pause aggregator.toml --run meters
    """

    do, scope = "pause", "pause this run alone"


class Resume(_RunOrder):
    """Resume a paused or halted run.

    gridfed-aggregator resume aggregator.toml
    gridfed-aggregator resume aggregator.toml --run meters
    """

    do, scope = "resume", "resume this run alone"


class Round(_RunOrder):
    """Open the next round now, before the start that the schedule gives it.

    The rounds after it begin at the times of the schedule.

      gridfed-aggregator round now aggregator.toml
    """

    do, scope = "round", "open the next round of this run alone"

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        parser.add_argument("when", choices=("now",), help="now")
        super().add_arguments(parser)


class Label:
    """Change the labels of devices. A run takes the devices whose labels fit its cohort.

    An empty value removes a label. A connected device learns its runs at once.

      gridfed-aggregator label region=south meter-1 meter-2
      gridfed-aggregator label region=north,kind= meter-1
    """

    @staticmethod
    def add_arguments(parser: ArgumentParser) -> None:
        """Add the labels and the devices."""
        text = "labels to set; NAME= removes one"
        parser.add_argument("labels", metavar="NAME=VALUE,…", help=text)
        parser.add_argument("id", nargs="+", help="ids of the devices")
        add_config_option(parser)
        add_why(parser)

    @staticmethod
    def run(args: Namespace) -> CommandResult:
        changes = parse_labels(args.labels)
        if not changes:
            raise CommandError("label: expected NAME=VALUE, as in region=north")
        text = label_text(changes.items())
        orders = [ControlOrder("label", device, labels=text, why=args.why) for device in args.id]
        return apply_orders(AggregatorConfig.load(args.config), orders)


class Unlearn:
    """Remove a device's contribution to the model, exactly.

    Only for methods that keep contributions apart (analytic), and only while the daemon runs. The sums
    over the other devices are taken again, to the same bits as if the device had never sent anything;
    the weights inside them were computed under models that knew it, which a further run renews. Revoke
    a device that must not contribute again. The journal keeps its updates until retention deletes them.

      gridfed-aggregator unlearn meter-1
    """

    @staticmethod
    def add_arguments(parser: ArgumentParser) -> None:
        """Add the device and the run."""
        parser.add_argument("id", help="id of the device")
        add_config_option(parser)
        add_run(parser, "remove it from the model of this run alone")
        add_why(parser)

    @staticmethod
    def run(args: Namespace) -> CommandResult:
        """Remove a device's contribution."""
        config = AggregatorConfig.load(args.config)
        name = check_run_name(args.run, config)
        named = [run for run in config.runs if run.name == name]
        if name or len(config.runs) == 1:  # of several runs the daemon knows those of the device
            refuse_unlearning((named or config.runs)[0].method)
        return apply_orders(config, [ControlOrder("unlearn", args.id, run=name, why=args.why)])


class Command:
    """Send a signed command to one device.

    Operations: stop, resume, reenrol, report, budget, hello, wipe. The command is repeated after
    every hello until the device confirms it.

      gridfed-aggregator command meter-1 report
      gridfed-aggregator command meter-1 budget --releases 500

    wipe erases the device, and reenrol replaces its key: the root's keys sign them, for this device under its
    present key alone. Give each key where several have to sign.

      gridfed-aggregator command meter-1 wipe --root-key a.key --root-key b.key --days 7
    """

    @staticmethod
    def add_arguments(parser: ArgumentParser) -> None:
        """Add the device, the operation and its arguments."""
        parser.add_argument("id", help="id of the device")
        parser.add_argument("op", help="stop, resume, reenrol, report, budget, hello or wipe")
        parser.add_argument("--releases", type=int, help="budget: total number of updates allowed")
        add_root_key(parser)
        text = f"reenrol, wipe: days for which the root's signature holds (default: {DAYS})"
        parser.add_argument("--days", type=int, default=DAYS, metavar="N", help=text)
        add_config_option(parser)
        add_why(parser)

    @staticmethod
    def run(args: Namespace) -> CommandResult:
        """Send a command to one device."""
        numbers: dict[str, float] = {}
        if args.releases is not None:
            if not 0 <= args.releases <= RELEASES_LIMIT:
                raise CommandError(
                    f"command: --releases: expected 0 to {RELEASES_LIMIT}, got {_brief(args.releases)}"
                )
            numbers["releases"] = float(args.releases)
        check_args(args.op, numbers)
        config = AggregatorConfig.load(args.config)
        order = ControlOrder("command", args.id, op=args.op, args=numbers, why=args.why)
        if COMMANDS.get(args.op):
            order = _signed(order, args, require_database(config))
        return apply_orders(config, [order])


def _signed(order: ControlOrder, args: Namespace, config: AggregatorConfig) -> ControlOrder:
    """Return an order with the root's signatures over it."""
    if not 1 <= args.days <= LONGEST:
        raise CommandError(f"command: --days: expected 1 to {LONGEST}, got {_brief(args.days)}")
    with open_store(config.database, read_only=True) as store:
        device = store.devices.get(order.device)
    if device is None:
        raise CommandError(f"{order.device!r} is not enrolled", hint="gridfed-aggregator list")
    root = root_signers(config.state, config.root_public, args.root_key)
    until = SystemClock().wall() + args.days * DAY
    statement = command_statement(config.fleet, device.id, device.sign[0], order.op, until)
    proofs = b"".join(kid_of(one.public) + one.sign(statement) for one in root.keys)
    return replace(order, until=until, root=proofs.hex())


def _brief(number: int) -> str:
    return str(number) if abs(number) < 10**30 else f"a number of {number.bit_length()} bits"
