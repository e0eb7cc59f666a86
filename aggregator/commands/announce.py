"""Sign keys and bundle again; begin another run if the configuration changed.

Needed after a change of the method, its settings, the rule, the bundle or the shared layers:
the daemon refuses to continue a run under another configuration. The new run continues from the
present model if its layout still fits.

  gridfed-aggregator announce aggregator.toml
  gridfed-aggregator announce aggregator.toml --fresh    start from the bundle's initial model

If the configuration demands encryption, the key to which devices encrypt is announced too.

  gridfed-aggregator announce aggregator.toml --new-encryption-key
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from aggregator.audit_log import AuditLog, Initiator, login_name
from aggregator.bundles import shipped
from aggregator.commands.arguments import add_config, add_root_key, add_why, require_database
from aggregator.config import AggregatorConfig, BoundRun, bind
from aggregator.ingress.cohort import fits
from aggregator.operations.enrolment import keys_of
from aggregator.operations.run_setup import RunSetup, retire, set_up
from aggregator.operations.signing_keys import Delegate, RootSigners, open_signer, signer
from aggregator.store.opener import open_store
from aggregator.store.types import EnrolledDevice
from edge_sdk.app.cli import CommandResult
from edge_sdk.app.clock import SystemClock
from edge_sdk.protocol.keys import SigningKey, kid_of


def add_arguments(parser: ArgumentParser) -> None:
    """Add the configuration, the root key, and the choice of a fresh run."""
    add_config(parser)
    add_root_key(parser)
    parser.add_argument(
        "--fresh", action="store_true", help="begin another run from the bundle's initial model"
    )
    words = "make another key to which devices encrypt, and delete all but the two before"
    parser.add_argument("--new-encryption-key", action="store_true", help=words)
    words = "sign the bundle by a key of keys.bundle, without the root; the list of keys stays"
    parser.add_argument("--bundle-key", metavar="FILE", help=words)
    add_why(parser)


def run(args: Namespace) -> CommandResult:
    """Sign again, and begin another run if the configuration defines one."""
    return sign_announcements(args, require_database(AggregatorConfig.load(args.config)))


def load_keys(args: Namespace, config: AggregatorConfig) -> tuple[RootSigners, SigningKey]:
    """Return the root's keys and the online key; missing ones are made."""
    return keys_of(config.state, config.signing_key, config.root_public, args.root_key)


def signers_of(
    args: Namespace, config: AggregatorConfig
) -> tuple[RootSigners | Delegate, SigningKey]:
    """Return the root's keys, or the one to which bundles are delegated, and the online key."""
    if not getattr(args, "bundle_key", None):
        return load_keys(args, config)
    return Delegate(open_signer(args.bundle_key)), signer(config)


def sign_announcements(
    args: Namespace,
    config: AggregatorConfig,
    *,
    subject: str = "",
    detail: str = "",
    signers: tuple[RootSigners | Delegate, SigningKey] | None = None,
    also: Mapping[bytes, int] | None = None,
) -> CommandResult:
    """Sign keys and bundle, begin a run if one is due, record it, and report the files that devices need.

    Args:
        args: Arguments of ``init``, ``announce``, ``restore`` or ``rotate``.
        subject: What the command has changed before, for its record; empty for nothing.
        signers: The root's keys and the online key; those of the arguments if left out.
        also: Former keys of the aggregator that stay valid, each until a time (Unix milliseconds).
    """
    root, online = signers or signers_of(args, config)
    bound = [bind(view) for view in config.views()]
    kinds, encryption = config.encrypted_kinds, None
    for entry in config.index.having("open") if kinds else ():
        is_new = getattr(args, "new_encryption_key", False)
        encryption = bytes(entry.load("open")(config, renew=is_new))
    with open_store(config.database) as store, store.transaction():
        clients = [client for client in store.devices.all() if client.state != "revoked"]
        is_restored = store.was_restored
        done = [
            set_up(
                run,
                store,
                root=root,
                online=online.public,
                now=SystemClock().wall(),
                fresh=args.fresh,
                is_restored=is_restored,
                encryption=encryption,
                also=also,
            )
            for run in bound
        ]
        gone = retire(config, store)
        audit_log = AuditLog(store, config.fleet, online)
        by, why = Initiator("command", login_name()), getattr(args, "why", "")
        if subject:
            audit_log.record(by, args.command, subject, reason=why, detail=detail)
        for one, run in zip(done, bound, strict=True):
            subject = f"run {run.config.run.name or one.number}"
            detail = _recorded(one, run, root, online, encryption)
            audit_log.record(by, "announce", subject, reason=why, detail=detail)
        for name in gone:
            audit_log.record(by, "retire", f"run {name or '-'}", reason=why)
    root_files = ", ".join(args.root_key) or f"{config.state / 'root.key'}"
    text = "\n".join(
        (
            *(
                _described(config.fleet, one, run, clients)
                for one, run in zip(done, bound, strict=True)
            ),
            *(f"fleet {config.fleet}: run {name or '-'} is no longer announced" for name in gone),
            f"signed by root {root.name} for aggregator {online.kid.hex()}",
            *(
                f"devices encrypt {', '.join(kinds)} to the key {kid_of(key).hex()}"
                for key in (encryption,)
                if key is not None
            ),
            f"copy to every device: {config.root_public}",
            f"keep offline, the daemon does not need it: {root_files}",
        )
    )
    data = {
        **asdict(done[0]),
        "fleet": config.fleet,
        "root": (root.key if isinstance(root, Delegate) else root).public.hex(),
        "aggregator": online.public.hex(),
        "root_public": str(config.root_public),
        "encryption": encryption.hex() if encryption is not None else None,
    }
    if len(done) > 1:
        pairs = zip(config.runs, done, strict=True)
        data["runs"] = [{"name": run.name, **asdict(one)} for run, one in pairs]
    return CommandResult(data, text)


def _recorded(
    done: RunSetup,
    run: BoundRun,
    root: RootSigners | Delegate,
    online: SigningKey,
    encryption: bytes | None,
) -> str:
    manifest = run.bundle.manifest
    key = f", encryption key {kid_of(encryption).hex()}" if encryption is not None else ""
    return (
        f"{_outcome(done)}; bundle {manifest.name} version {manifest.version} "
        f"({run.bundle.digest.hex()}), aggregator key {online.public.hex()}{key}, "
        f"signed by root {root.name}"
    )


def _described(
    fleet: str, done: RunSetup, bound: BoundRun, clients: Sequence[EnrolledDevice]
) -> str:
    section = bound.config.run
    devices = sum(fits(client, section.cohort) for client in clients)
    name = f"{section.name}: " if section.name else ""
    return (
        f"fleet {fleet}: {name}{_outcome(done)}\n"
        f"devices ({devices} enrolled): {_effect(done, bound)}"
    )


def _outcome(done: RunSetup) -> str:
    if not done.is_new:
        return f"run {done.number} continues"
    model = (
        "from the model of the previous run"
        if done.continued
        else "from the bundle's initial model"
    )
    return f"run {done.number} begins {model}"


def _effect(done: RunSetup, bound: BoundRun) -> str:
    manifest = bound.bundle.manifest
    name = f"{manifest.name} version {manifest.version}"
    if done.installs:
        size = len(bound.bundle.archive)
        source = "or have it from the package" if bound.config.run.bundle in shipped() else "once"
        return f"fetch bundle {name} ({size} bytes, {source}), then join run {done.number}"
    if done.is_new:
        return f"join run {done.number} with bundle {name}, which they have"
    return f"continue run {done.number} with bundle {name}"
