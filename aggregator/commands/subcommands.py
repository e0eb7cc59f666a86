"""Implement the subcommands: take parsed arguments, return a result as text and as JSON."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from numpy import ones

from aggregator import config as configs
from aggregator.ingress.dead_letters import DeadLetters
from aggregator.methods import METHODS
from aggregator.operations.control_queue import ControlOrder, apply, check_args, leave, renewal
from aggregator.operations.credit_heatmap import given, received, svg, table
from aggregator.operations.http_status import SCHEMA, round_line
from aggregator.operations.operator_alerts import horizon_of, offline, refuse_expired, rows
from aggregator.store import DatabaseBusyError, SqliteStore
from edge_sdk.app.cli import RUNTIME, USAGE, CommandResult, Failure
from edge_sdk.app.clock import SystemClock
from edge_sdk.app.permissions import make_private_folder
from edge_sdk.app.settings import SettingsError, shown
from edge_sdk.wire.protocol.codec import pack_tensor
from edge_sdk.wire.protocol.messages import RELEASES_LIMIT

PATIENCE = 5.0  # s, time-out of the status page
SHOWN = 8  # devices listed per cluster; the JSON has them all


class CommandError(Failure):
    """A command with invalid arguments."""

    exit_code = USAGE


def run(args: Namespace) -> CommandResult:
    """Serve until a signal, or until the last round if requested."""
    from edge_sdk.app.cli import start_logging  # noqa: PLC0415 - only the daemon logs

    try:
        from aggregator.daemon import serve  # noqa: PLC0415 - metrics, TLS
    except ModuleNotFoundError as error:
        if error.name != "prometheus_client":
            raise
        raise CommandError(
            "run needs prometheus-client, which is not installed",
            hint="pip install 'gridfed[aggregator]'",
        ) from error
    environ = dict(os.environ)  # also used by a reload: --log always overrides the file
    if args.log is not None:
        environ[f"{configs.PREFIX}LOG__LEVEL"] = args.log
    config = configs.AggregatorConfig.load(args.config, environ)
    start_logging(config.log.level)
    outcome = serve(config, exit_when_done=args.exit_when_done, environ=environ)
    return CommandResult(
        outcome, f"stopped after round {outcome['round']}, version {outcome['version']}"
    )


def check(args: Namespace) -> CommandResult:
    """Bind the configuration as the daemon would, and show the origin of each value."""
    loaded = configs.load_with_origins(args.config)
    bound = configs.bind(loaded.value)
    now = SystemClock().wall() / 1000
    expiring = rows(refuse_expired(loaded.value, now), now, horizon_of(loaded.value))
    manifest = bound.bundle.manifest
    facts = {
        "bundle": f"{manifest.name} {manifest.version}, {bound.bundle.digest.hex()[:12]}",
        "scalars": bound.spec.size,
        "shared": bound.spec.shared_size,
        "bytes_per_update": len(pack_tensor(ones(bound.spec.shared_size), bound.ask.enc)),
    }
    said = _in_force(loaded.value, loaded.origins)
    width = max(len(key) for key, _, _ in said)
    lines = [f"{key:<{width}}  {value}  ({origin})" for key, value, origin in said]
    lines += ["", *(f"{name:<{width}}  {value}" for name, value in facts.items())]
    lines += [f"{one['kind']:<{width}}  {one['file']}: {one['told']}" for one in expiring]
    lines += [f"warning: {one['file']}: {one['told']}" for one in expiring if one["soon"]]
    settings = [{"key": key, "value": value, "origin": origin} for key, value, origin in said]
    data = {"settings": settings, **facts, "certificates": expiring}
    return CommandResult(data, "\n".join([*lines, f"{args.config}: all well"]))


def _in_force(
    config: configs.AggregatorConfig, origins: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    """List key, value and origin of every setting, including the method's defaults."""
    prefix = "run.settings"
    said = {key.removeprefix(f"{prefix}."): origin for key, origin in origins.items()}
    own = shown(configs.settings_of(config), said)
    rows: list[tuple[str, str, str]] = []
    combines = METHODS[config.run.method].own
    for key, value, origin in shown(config, origins):
        if combines and key.startswith("run.rule"):
            continue
        if key == prefix or key.startswith(f"{prefix}."):
            rows += [(f"{prefix}.{name}", text, whence) for name, text, whence in own]
            own = []
        elif key != "file":
            rows.append((key, value, origin))
    return rows


def init(args: Namespace) -> CommandResult:
    """Create missing files, begin the run, and report what devices need."""
    config = configs.AggregatorConfig.load(args.config)
    make_private_folder(config.state)
    return _found(args, config)


def announce(args: Namespace) -> CommandResult:
    """Sign again, and begin another run if the configuration defines one."""
    config = configs.AggregatorConfig.load(args.config)
    if not config.database.exists():
        raise CommandError(
            f"{config.database}: there is no fleet here yet",
            hint=f"begin: gridfed-aggregator init {args.config}",
        )
    return _found(args, config)


def restore(args: Namespace) -> CommandResult:
    """Restore a backup of the database, and begin the run that follows it."""
    from aggregator.operations.backup_restore import put_in_place  # noqa: PLC0415 - only here

    config = configs.AggregatorConfig.load(args.config)
    configs.bind(config)
    if not config.root_public.exists():
        raise CommandError(
            f"{config.root_public}: no such key; devices trust the root of the fleet's first day",
            hint="put root.pub and aggregator.key back beside the backup, then restore",
        )
    _keys(args, config)  # fail before the restore if the keys are missing
    done = put_in_place(config, Path(args.file), now=SystemClock().wall())
    args.fresh = False
    begun = _found(args, config)
    text = (
        f"{args.file}: run {done.run}, version {done.version}, is in place; the run that begins "
        "continues from there\n"
        "what was recorded after the backup is lost here; devices that know more are told to say "
        "hello, and nothing is counted twice\n"
        "who was enrolled, revoked or quarantined since then must be so again"
    )
    aside = None if done.aside is None else str(done.aside)
    kept = f"\nthe database from before: {aside}" if aside else ""
    data = {**begun.data, "restored_run": done.run, "version": done.version, "aside": aside}
    return CommandResult(data, f"{text}{kept}\n{begun.text}")


def _keys(args: Namespace, config: configs.AggregatorConfig) -> Any:  # noqa: ANN401 - root's and online key
    from aggregator.operations.enrolment import keys_of  # noqa: PLC0415 - the cryptography library

    root_key = Path(args.root_key) if args.root_key else None
    return keys_of(config.state, config.signing_key, config.root_public, root_key)


def _found(args: Namespace, config: configs.AggregatorConfig) -> CommandResult:
    from aggregator.operations.run_setup import found  # noqa: PLC0415 - the cryptography library

    root, online = _keys(args, config)
    bound = configs.bind(config)
    with SqliteStore.open(config.database) as store:
        done = found(
            bound,
            store,
            root=root,
            online=online.public,
            now=SystemClock().wall(),
            fresh=args.fresh,
        )
    model = "from the model of the run before" if done.continued else "from the bundle's vector"
    what = f"run {done.number} begins {model}" if done.is_new else f"run {done.number} goes on"
    text = (
        f"fleet {config.fleet}: {what}\n"
        f"signed by root {root.kid.hex()} for aggregator {online.kid.hex()}\n"
        f"copy to every device: {config.root_public}\n"
        f"keep offline, the daemon does not need it: {args.root_key or config.state / 'root.key'}"
    )
    data = {
        **asdict(done),
        "fleet": config.fleet,
        "root": root.public.hex(),
        "aggregator": online.public.hex(),
        "root_public": str(config.root_public),
    }
    return CommandResult(data, text)


def enrol(args: Namespace) -> CommandResult:
    """Check one claim or a file of claims, and enrol the devices."""
    from aggregator.operations.enrolment import check as checked  # noqa: PLC0415 - the cryptography library
    from aggregator.operations.enrolment import claim_of, read_claims  # noqa: PLC0415 - as above

    if bool(args.from_file) == bool(args.id):
        raise CommandError("enrol: give an id with --public, or --from-file")
    if args.id and not args.public:
        raise CommandError("enrol: give the device's public key: --public HEX or FILE")
    config = configs.AggregatorConfig.load(args.config)
    claims = (
        list(read_claims(Path(args.from_file)))
        if args.from_file
        else [claim_of(args.id, args.public, args.proof)]
    )
    for claim in claims:
        checked(claim, config.fleet)
    if not 0 <= args.spent <= RELEASES_LIMIT:
        raise CommandError(f"--spent: {args.spent} is not from 0 to {RELEASES_LIMIT}")
    orders = [
        ControlOrder("enrol", claim.device, public=claim.public.hex(), spent=args.spent)
        for claim in claims
    ]
    return _order(config, orders)


def revoke(args: Namespace) -> CommandResult:
    """Revoke a device."""
    return _order(
        configs.AggregatorConfig.load(args.config), [ControlOrder("revoke", args.id, why=args.why)]
    )


def command(args: Namespace) -> CommandResult:
    """Send a command to one device."""
    numbers: dict[str, float] = {}
    if args.releases is not None:
        if not 0 <= args.releases <= RELEASES_LIMIT:
            raise CommandError(
                f"--releases: {_brief(args.releases)} is not from 0 to {RELEASES_LIMIT}"
            )
        numbers["releases"] = float(args.releases)
    check_args(args.op, numbers)
    order = ControlOrder("command", args.id, op=args.op, args=numbers)
    return _order(configs.AggregatorConfig.load(args.config), [order])


def _brief(number: int) -> str:
    """Format a number that may have thousands of digits."""
    return str(number) if abs(number) < 10**30 else f"a number of {number.bit_length()} bits"


def pause(args: Namespace) -> CommandResult:
    """Pause the fleet."""
    return _order(configs.AggregatorConfig.load(args.config), [ControlOrder("pause", "_all")])


def resume(args: Namespace) -> CommandResult:
    """Resume a paused fleet."""
    return _order(configs.AggregatorConfig.load(args.config), [ControlOrder("resume", "_all")])


def _order(config: configs.AggregatorConfig, orders: list[ControlOrder]) -> CommandResult:
    """Apply orders here, or queue them for the daemon that has the database open."""
    _require(config)
    try:
        with SqliteStore.open(config.database) as store:
            told = [apply(order, store) for order in orders]
    except DatabaseBusyError:
        with SqliteStore.open(config.database, read_only=True) as store:
            anew = [renewal(order, store) for order in orders]
        for order in orders:
            leave(config.inbox, order)
        told = [
            f"{order.do} {order.device}: handed to the running daemon{more}"
            for order, more in zip(orders, anew, strict=True)
        ]
    return CommandResult({"done": told}, "\n".join(told))


def listing(args: Namespace) -> CommandResult:
    """List the devices and their state."""
    config = _require(configs.AggregatorConfig.load(args.config))
    with SqliteStore.open(config.database, read_only=True) as store:
        unusable = store.unusable()
        rows = [
            {
                "id": client.id,
                "state": client.state,
                "generation": client.generation,
                "why": client.why,
                "life": store.ledger(client.id).cur,
                "spent": store.ledger(client.id).spent,
                "unusable": unusable.get(client.id, []),
            }
            for client in store.clients()
        ]
    text = "\n".join(
        f"{r['id']:<24} {r['state']:<12} releases {r['spent']}  {r['why']}".rstrip() for r in rows
    )
    if unusable:
        text += "\n" + "\n".join(
            f"warning: {device}: on disk and out of bounds: {', '.join(names)}; "
            "enrol it with a new key"
            for device, names in unusable.items()
        )
    return CommandResult({"devices": rows}, text or "no device is enrolled")


def status(args: Namespace) -> CommandResult:
    """Return the status from the daemon's page; without an answer, read the store."""
    config = configs.AggregatorConfig.load(args.config)
    document = _from_page(config) or _from_store(config)
    return CommandResult(document, _prose(document))


def health(args: Namespace) -> CommandResult:
    """Report whether the daemon is alive and ready."""
    document = _from_page(configs.AggregatorConfig.load(args.config))
    if document is None:
        return CommandResult({"ready": False, "running": False}, "not running", RUNTIME)
    code = 0 if document["ready"] else RUNTIME
    missing = [name for name, ok in document["checks"].items() if not ok]
    said = "ready" if document["ready"] else f"not ready: {', '.join(missing) or 'starting'}"
    return CommandResult(
        {"ready": document["ready"], "running": True, "missing": missing}, said, code
    )


def audit(args: Namespace) -> CommandResult:
    """Recompute every round; with ``--devices``, compare link traces with the database."""
    from aggregator.commands.audit import audit as audited  # noqa: PLC0415 - only here

    return audited(args)


def dead_letters(args: Namespace) -> CommandResult:
    """List, show, retry or delete dead letters."""
    from aggregator.commands.dead_letters import dead_letters as run_dead_letters  # noqa: PLC0415 - only here

    return run_dead_letters(args)


def certify(args: Namespace) -> CommandResult:
    """Bound the Lipschitz constants of the run's present model."""
    from aggregator.commands.certificate import certify as certified  # noqa: PLC0415 - only here

    return certified(args)


def backup(args: Namespace) -> CommandResult:
    """Copy the database while the daemon runs."""
    config = _require(configs.AggregatorConfig.load(args.config))
    target = Path(args.file)
    with SqliteStore.open(config.database, read_only=True) as store:
        store.backup(target)
        begun = store.run()
        after = store.closed_by(begun.run, store.first(begun.run).upto) if begun else 0
    size = target.stat().st_size
    told = f"{target}: {size} bytes" + (f"; audit after round {after}" if after else "")
    return CommandResult({"file": str(target), "bytes": size, "audit after": after}, told)


def broker(args: Namespace) -> CommandResult:
    """Find, start, configure or check a broker."""
    from aggregator.commands import broker as brokering  # noqa: PLC0415 - starts processes

    deeds: Mapping[str, Callable[[Namespace], CommandResult]] = {
        "find": brokering.find,
        "start": brokering.start,
        "config": brokering.config,
        "access": brokering.access,
        "check": brokering.check,
    }
    return deeds[args.what](args)


def export(args: Namespace) -> CommandResult:
    """Export a torch module as a signed bundle."""
    try:
        from aggregator.models.errors import ExportError  # noqa: PLC0415 - as below
        from aggregator.models.export import export_command  # noqa: PLC0415 - loads torch
    except ModuleNotFoundError as error:
        if error.name not in {"torch", "onnx", "sympy"}:
            raise
        raise CommandError(
            f"export needs {error.name}, which is not installed",
            hint="pip install 'gridfed[train]'; nothing else here needs it",
        ) from error
    try:
        out = export_command(
            args.model,
            Path(args.out),
            key=Path(args.key),
            version=args.bundle_version,
            name=args.name,
            like=args.like,
            shared=None if args.shared is None else tuple(args.shared),
            graphs=None if args.graphs is None else tuple(args.graphs),
            methods=tuple(args.methods),
        )
    except ExportError as error:
        raise CommandError(f"export: {error}") from error
    return CommandResult({"bundle": str(out)}, f"{out}: written, checked against torch, and signed")


def credit(args: Namespace) -> CommandResult:
    """Show the credit weights of the devices' models, by round."""
    config = _require(configs.AggregatorConfig.load(args.config))
    with SqliteStore.open(config.database, read_only=True) as store:
        begun = store.run()
        closed = store.versions(begun.run) if begun is not None else []
    weighed = {v.version: v.report["credit"] for v in closed if v.moved and "credit" in v.report}
    if not weighed:
        raise CommandError(
            f"{config.database}: no round has weighed models for one another",
            hint="methods that do: pfl, pfgl; and fleets of at most 64 devices are written down",
        )
    try:
        heat = received(weighed) if args.by is None else given(weighed, args.by)
    except KeyError as error:
        raise CommandError(f"{args.by}: took part in no round that was weighed") from error
    text = f"{heat.title}:\n{table(heat)}\noutcasts: {', '.join(heat.outcasts) or 'none'}"
    data: dict[str, Any] = {"credit": weighed, "outcasts": list(heat.outcasts)}
    if args.out is not None:
        Path(args.out).write_text(svg(heat), encoding="utf-8")
        data["out"], text = args.out, f"{text}\nheat map: {args.out}"
    return CommandResult(data, text)


def _require(config: configs.AggregatorConfig) -> configs.AggregatorConfig:
    if not config.database.exists():
        raise CommandError(
            f"{config.database}: there is no fleet here yet",
            hint=f"begin: gridfed-aggregator init {config.file}",
        )
    return config


def _from_page(config: configs.AggregatorConfig) -> dict[str, Any] | None:
    if config.http.listen == "off":
        return None
    try:
        with urllib.request.urlopen(
            f"http://{config.http.listen}/status", timeout=PATIENCE
        ) as page:
            document: dict[str, Any] = json.load(page)
    except (urllib.error.URLError, OSError, ValueError):
        return None
    is_ours = document.get("schema") == SCHEMA and document.get("fleet") == config.fleet
    return {"running": True, **document} if is_ours else None


def _from_store(config: configs.AggregatorConfig) -> dict[str, Any]:
    """Return the status from the store, of a daemon that is not running."""
    _require(config)
    with SqliteStore.open(config.database, read_only=True) as store:
        begun = store.run()
        if begun is None:
            raise SettingsError(f"{config.database} has no run yet")
        closed = store.versions(begun.run, last=10)
        clients = store.clients()
        after = store.closed_by(begun.run, store.first(begun.run).upto)
        kept = {"bytes": store.size(), **store.used(), "audit after": after}
    last = closed[-1] if closed else None
    moved = [version.report for version in closed if version.moved]
    clusters = moved[-1].get("clusters", {}) if moved else {}
    document = {
        "schema": SCHEMA,
        "running": False,
        "ready": False,
        "fleet": config.fleet,
        "run": {
            "run": begun.run,
            "method": begun.method,
            "bundle": begun.bundle,
            "round": last.round if last else 0,
            "version": last.version if last else 0,
        },
        "devices": {"enrolled": sum(client.state != "revoked" for client in clients)},
        "rounds": [round_line(version) for version in reversed(closed)],
    }
    alarms = {client.id: client.why for client in clients if client.state == "quarantined"}
    said: dict[str, Any] = {"clusters": clusters, "alarms": alarms}
    said["store"] = kept
    said["certificates"] = offline(config)
    letters = DeadLetters(config.state / "dead-letters")
    said |= {"halted": letters.halted, "dead_letters": letters.count}
    said["credit"] = next((v.report.get("credit", {}) for v in reversed(closed) if v.moved), {})
    return document | {name: told for name, told in said.items() if told}


def _prose(document: Mapping[str, Any]) -> str:
    head = "running" if document["running"] else "not running; as the store has it"
    lines = [f"fleet {document['fleet']}: {head}"]
    for name in ("checks", "run", "devices", "refused", "store"):
        pairs = document.get(name) or {}
        if pairs:
            lines.append(f"{name}: " + ", ".join(f"{key} {value}" for key, value in pairs.items()))
    for label, names in document.get("clusters", {}).items():
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        lines.append(f"cluster {label}: {', '.join(names[:SHOWN]) or 'nobody'}{more}")
    found = document.get("certificates", ())
    lines += [f"{one['kind']} {one['file']}: {one['told']}" for one in found]
    if "halted" in document:
        lines.append(f"RUN HALTED {document['halted']}")
    if "dead_letters" in document:
        lines.append(f"dead letters: {document['dead_letters']}")
    if "configuration" in document:
        lines.append(f"configuration {document['configuration']}")
    for device, why in document.get("alarms", {}).items():
        lines.append(f"ALARM {device}: quarantined, {why}")
    for device, what in document.get("flooding", {}).items():
        lines.append(f"FLOOD {device}: {what}")
    for entry in document.get("rounds", ())[:5]:
        loss = "" if entry["loss"] is None else f", loss {entry['loss']:.5g}"
        told = f"{entry['result']}, {entry['updates']} updates{loss}"
        lines.append(f"round {entry['round']}: version {entry['version']}, {told}")
    return "\n".join(lines)
