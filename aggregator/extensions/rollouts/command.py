"""Let a bundle out in waves: start, status, pause, resume, abort.

A share of the fleet first scores the new version beside the served one. The waves then serve it, one after
the other, as long as members' days are not worse than with the served version. Harm ends the rollout by
itself: its devices return to the version that they served, as the root key has authorised. Only start
needs that key.

  gridfed-aggregator rollout start load-week-1 --waves 1,5,25,100
  gridfed-aggregator rollout start load-week-1 --gate days=3,least=5,margin=1.5,shadow=100,bound=1
  gridfed-aggregator rollout status --json
  gridfed-aggregator rollout pause          no further device begins to serve the version
  gridfed-aggregator rollout abort --why "complaints of customers"    every device returns
"""

from __future__ import annotations

import secrets
from argparse import ArgumentParser, Namespace
from typing import Any

from aggregator.audit_log import Initiator, login_name
from aggregator.bundles import ModelBundle
from aggregator.commands.announce import load_keys
from aggregator.commands.arguments import (
    CommandError,
    add_config_option,
    add_root_key,
    require_database,
)
from aggregator.config import AggregatorConfig, registry_of
from aggregator.config.bundle_registry import LIVE, BundleRegistry
from aggregator.extensions.rollouts import rollout_control as control
from aggregator.extensions.rollouts.daemon_rollout import leave_description
from aggregator.operations import signing_keys
from aggregator.operations.control_queue import ControlOrder, leave
from aggregator.rounds.announcements import Ends
from aggregator.store.errors import DatabaseBusyError
from aggregator.store.opener import open_store
from edge_sdk.app.cli import CommandResult
from edge_sdk.app.clock import SystemClock
from edge_sdk.extensions.rollouts.messages import RolloutMessage
from edge_sdk.protocol.envelope import ROOT

# the gate's names with their default values; margin, shadow and bound are per cent
GATE = {"days": 3.0, "least": 5.0, "margin": 1.5, "shadow": 100.0, "bound": 1.0}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the action, the bundle, the waves and the gate."""
    parser.add_argument("what", choices=("start", "status", *control.ACTS), help="action")
    parser.add_argument("name", nargs="?", default="", help="start: name of a bundle")
    parser.add_argument("--version", type=int, help="start: version that is let out (newest)")
    parser.add_argument(
        "--alias", default=LIVE, help=f"start: alias of the served version ({LIVE})"
    )
    parser.add_argument("--waves", default="1,5,25,100", help="per cent of the fleet (1,5,25,100)")
    defaults = ",".join(f"{name}={value:g}" for name, value in GATE.items())
    parser.add_argument("--gate", default="", help=f"changes of the gate ({defaults})")
    parser.add_argument("--who", default="", help="person who gives the order (the user's name)")
    parser.add_argument("--why", default="", help="reason, recorded with pause, resume and abort")
    add_config_option(parser)
    add_root_key(parser)


def run(args: Namespace) -> CommandResult:
    """Execute one action."""
    config = require_database(AggregatorConfig.load(args.config))
    who = (args.who or login_name())[:64]
    if args.what == "status":
        return status(config)
    if args.what == "start":
        return start(args, config, who)
    return act(args.what, config, who, args.why[:180])


def parse_waves(text: str) -> tuple[float, ...]:
    """Return the shares of ``1,5,25,100`` per cent.

    Raises:
        CommandError: They are no numbers, or do not rise from above 0 to at most 100.

    >>> parse_waves("1,5,100")
    (0.01, 0.05, 1.0)
    """
    try:
        waves = tuple(float(one) / 100.0 for one in text.split(","))
    except ValueError:
        waves = ()
    is_rising = all(a < b for a, b in zip((0.0, *waves), waves, strict=False))
    if not 1 <= len(waves) <= 8 or not is_rising or not waves[-1] <= 1.0:
        raise CommandError(
            f"--waves: expected 1 to 8 rising numbers above 0 and up to 100, got {text!r}"
        )
    return waves


def parse_gate(text: str) -> dict[str, Any]:
    """Return the gate's fields of the description.

    Raises:
        CommandError: An unknown name, or a value out of bounds.

    >>> parse_gate("days=7,margin=5")
    {'days': 7, 'least': 5, 'margin': 0.05, 'shadow': 1.0, 'bound': 0.01}
    """
    found = dict(GATE)
    for part in filter(None, text.split(",")):
        name, _, value = part.strip().partition("=")
        if name not in GATE:
            raise CommandError(f"--gate: unknown name {name!r}; known: {', '.join(GATE)}")
        try:
            found[name] = float(value)
        except ValueError:
            raise CommandError(f"--gate: {name}: expected a number, got {value!r}") from None
    limits = {"days": (1, 31), "least": (1, 1_000_000), "margin": (0, 50), "shadow": (0, 100)}
    for name, (low, high) in {**limits, "bound": (0.0001, 50)}.items():
        whole = name not in ("days", "least") or found[name] == int(found[name])
        if not low <= found[name] <= high or not whole:
            kind = "number" if name in ("margin", "shadow", "bound") else "whole number"
            raise CommandError(
                f"--gate: {name}: expected a {kind} from {low:g} to {high:g}, got {found[name]:g}"
            )
    return {
        "days": int(found["days"]),
        "least": int(found["least"]),
        **{name: found[name] / 100.0 for name in ("margin", "shadow", "bound")},
    }


def start(args: Namespace, config: AggregatorConfig, who: str) -> CommandResult:
    """Sign a description with the root key, and begin it here or in the running daemon."""
    if not args.name:
        raise CommandError("rollout start: expected the name of a bundle")
    gate = control.RolloutGate(parse_waves(args.waves), **parse_gate(args.gate))
    registry = registry_of(config)
    served, bundle = _chosen(args, registry)
    root, online = load_keys(args, config)
    now = SystemClock().wall()
    plan = control.describe(
        bundle, served.digest, serial=now, salt=secrets.token_bytes(16), gate=gate
    )
    payload = Ends(config.fleet, root, also=root.also).to_all(plan, ROOT)
    try:
        with open_store(config.database) as store:
            by = Initiator("command", who)
            control.begin(config, store, Ends(config.fleet, online), payload, by=by, now=now)
        text = "started"
    except DatabaseBusyError:
        leave_description(config.inbox, payload)
        leave(config.inbox, ControlOrder("rollout", "_all", op="start", who=who, why="start"))
        text = "queued for the running daemon"
    return CommandResult(_described(plan), f"{_sentence(plan)}: {text}")


def _chosen(args: Namespace, registry: BundleRegistry) -> tuple[ModelBundle, ModelBundle]:
    served = registry.resolve(f"{args.name}@{args.alias}")
    newest = registry.versions(args.name)[-1]
    version = newest if args.version is None else args.version
    if version <= served.manifest.version:
        raise CommandError(
            f"rollout start: {args.name} version {version} is not above the served version "
            f"{served.manifest.version}",
            hint="export it under a higher --bundle-version, and add it: gridfed-aggregator bundle "
            f"promote FOLDER --alias next, which leaves @{args.alias} where it is",
        )
    return served, registry.open(args.name, version)


def status(config: AggregatorConfig) -> CommandResult:
    """Show the newest rollout."""
    with open_store(config.database, read_only=True) as store:
        found = control.summary(store, config.fleet)
    if not found:
        return CommandResult({"rollout": None}, "no rollout")
    places, reported = found["places"], found["reported"]
    lines = [
        (
            f"{found['bundle']} version {found['version']}: {found['phase']}, stage "
            f"{found['stage']} of {len(found['waves'])} ({found['why']})"
        ),
        (
            f"devices: {places['serve']} may serve it, {places['score']} score it, "
            f"{places['none']} take no part"
        ),
        "reported: " + ", ".join(f"{count} {name}" for name, count in reported.items()),
        f"days: {found['days passed']} of {found['days needed']} in this stage",
        f"evidence of harm: {100 * found['evidence of harm']:.2g} % of what stops it",
        *(
            f"  {day}: {one['lost']} lost, {one['kept']} not, {one['serving']} served it"
            for day, one in found["days"].items()
        ),
        *(
            f"  change at {one['time']}: {one['phase']}, stage {one['stage']}, {one['why']}"
            f"{', by ' + one['who'] if one['who'] else ''}"
            for one in found["changes"]
        ),
    ]
    return CommandResult({"rollout": found}, "\n".join(lines))


def act(what: str, config: AggregatorConfig, who: str, why: str = "") -> CommandResult:
    """Pause, resume or abort the rollout, here or in the running daemon."""
    try:
        with open_store(config.database) as store:
            ends = Ends(config.fleet, signing_keys.signer(config))
            rollout = control.RolloutControl(store, ends, SystemClock(), lambda _: None)
            done = rollout.act(what, Initiator("command", who), why)
    except DatabaseBusyError:
        leave(config.inbox, ControlOrder("rollout", "_all", op=what, who=who, why=why))
        done = f"rollout {what}: queued for the running daemon"
    return CommandResult({"done": done}, done)


def _described(plan: RolloutMessage) -> dict[str, Any]:
    return {
        "bundle": plan.name,
        "version": plan.version,
        "waves": list(plan.waves),
        "shadow": plan.shadow,
        "days": plan.days,
        "least": plan.least,
        "margin": plan.margin,
        "bound": plan.bound,
    }


def _sentence(plan: RolloutMessage) -> str:
    waves = ", ".join(f"{100 * one:g}" for one in plan.waves)
    return f"rollout of {plan.name} version {plan.version} in waves of {waves} %"
