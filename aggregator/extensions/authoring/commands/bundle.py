"""List the fleet's bundles, and choose the version that it trains: promote, rollback, re-sign.

The configuration names an alias, run.bundle = "load-week-1@live"; promote and rollback move it, and
announce then signs it for the devices. Devices refuse a lower version, so a rollback releases the
old content again under the next version. No torch is needed.

  gridfed-aggregator bundle list
  gridfed-aggregator bundle promote load-week-1              a shipped bundle, or a folder of `export`
  gridfed-aggregator bundle promote bundles/load-week-1      version 2
  gridfed-aggregator bundle rollback load-week-1 --to 1      becomes version 3, with the content of 1
  gridfed-aggregator bundle re-sign load-week-1              all versions, by another root key
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from aggregator.bundles import ModelBundle, open_bundle, shipped
from aggregator.commands.announce import load_keys
from aggregator.commands.arguments import CommandError, add_config_option, add_root_key
from aggregator.commands.orders import apply_orders
from aggregator.config import AggregatorConfig, registry_of
from aggregator.config.bundle_registry import ALIASES, LIVE, BundleRegistry, BundleRegistryError
from aggregator.operations.control_queue import ControlOrder
from aggregator.store.opener import exists
from edge_sdk.app.cli import CommandResult
from edge_sdk.app.permissions import make_private_folder, open_private
from edge_sdk.protocol.contract.archive import MANIFEST, SIGNATURE, seal
from edge_sdk.protocol.contract.manifest import Manifest
from edge_sdk.protocol.keys import Signer, write_atomically


def add_arguments(parser: ArgumentParser) -> None:
    """Add the action, the bundle and the options of each action."""
    parser.add_argument("what", choices=tuple(ACTIONS), help="action")
    parser.add_argument(
        "name", nargs="?", default="", help="name of a bundle; promote: or a folder"
    )
    parser.add_argument("--to", type=int, help="rollback: version whose content is released again")
    parser.add_argument(
        "--version", type=int, help="promote, re-sign: a version of the registry (newest; all)"
    )
    parser.add_argument(
        "--alias", default=LIVE, help=f"promote, rollback: alias that moves ({LIVE})"
    )
    add_config_option(parser)
    add_root_key(parser)


def run(args: Namespace) -> CommandResult:
    """Execute one action; raise CommandError if an argument is missing."""
    if args.what != "list" and not args.name:
        raise CommandError(f"bundle {args.what}: expected the name of a bundle")
    config = AggregatorConfig.load(args.config)
    return ACTIONS[args.what](args, config, registry_of(config))


def list_bundles(
    _args: Namespace, config: AggregatorConfig, registry: BundleRegistry
) -> CommandResult:
    """List every version with its aliases."""
    found: list[dict[str, Any]] = []
    aliases = registry.aliases()
    for name in registry.names():
        for version in registry.versions(name):
            bundle = registry.open(name, version)
            named = sorted(alias for alias, of in aliases.get(name, {}).items() if of == version)
            found.append(
                {
                    "name": name,
                    "version": version,
                    "digest": bundle.digest.hex(),
                    "bytes": len(bundle.archive),
                    "aliases": named,
                }
            )
    lines = [
        f"{one['name']:<20} {one['version']:>4}  {str(one['digest'])[:12]}  {one['bytes']:>9} B  "
        f"{', '.join(f'@{alias}' for alias in one['aliases']) or '-'}"
        for one in found
    ]
    lines.append(f"run.bundle: {config.run.bundle}")
    return CommandResult({"bundles": found, "run": config.run.bundle}, "\n".join(lines))


def promote(args: Namespace, config: AggregatorConfig, registry: BundleRegistry) -> CommandResult:
    """Let the alias name a version; a shipped bundle or a folder is added first."""
    name, version = args.name, args.version
    if version is None and not (name in registry.names() and name not in shipped()):
        bundle = _added(name, config, registry)
        name, version = bundle.manifest.name, bundle.manifest.version
        newest = registry.versions(name)[-1]
        if version < newest:
            raise CommandError(
                f"bundle promote: {name} version {version} is older than version {newest}, and "
                "devices refuse a lower version",
                hint=f"gridfed-aggregator bundle rollback {name} --to {version}",
            )
    version = registry.versions(name)[-1] if version is None else version
    return _moved(args, config, registry, registry.open(name, version))


def roll_back(args: Namespace, config: AggregatorConfig, registry: BundleRegistry) -> CommandResult:
    """Release the content of an older version again, and let the alias name it."""
    known = registry.versions(args.name)
    if args.to is None:
        named = registry.aliases().get(args.name, {}).get(args.alias, 0)
        older = [version for version in known if version < named]
        if not older:
            raise CommandError(
                f"bundle rollback: {args.name}@{args.alias} has no version before it",
                hint="gridfed-aggregator bundle list; name a version with --to",
            )
        args.to = older[-1]
    registry.path(args.name, args.to)
    root, _ = load_keys(args, config)
    released = released_again(registry, args.name, args.to, root)
    return _moved(args, config, registry, released, f", with the content of version {args.to}")


def sign_again(
    args: Namespace, config: AggregatorConfig, registry: BundleRegistry
) -> CommandResult:
    """Sign versions again by the present root key."""
    root, _ = load_keys(args, config)
    versions = registry.versions(args.name) if args.version is None else [args.version]
    for version in versions:
        sign_version(registry, args.name, version, root)
    signed = ", ".join(map(str, versions)) or "none"
    detail = f"versions {signed} signed by root {root.kid.hex()}"
    _record(config, "re-sign bundle", args.name, detail)
    text = f"{args.name}: versions signed by root {root.kid.hex()}: {signed}"
    return CommandResult({"name": args.name, "versions": versions}, text)


ACTIONS = {"list": list_bundles, "promote": promote, "rollback": roll_back, "re-sign": sign_again}


def _added(where: str, config: AggregatorConfig, registry: BundleRegistry) -> ModelBundle:
    bundle = open_bundle(where, folder=config.file.parent, trusted=registry.trusted)
    if where in shipped():
        with as_file(files("edge_sdk").joinpath("bundles")) as home:
            add_version(registry, bundle, home / where)
    else:
        add_version(registry, bundle, config.file.parent / Path(where).expanduser())
    return bundle


def _moved(
    args: Namespace,
    config: AggregatorConfig,
    registry: BundleRegistry,
    bundle: ModelBundle,
    what: str = "",
) -> CommandResult:
    name, version = bundle.manifest.name, bundle.manifest.version
    before = move_alias(registry, name, args.alias, version)
    alias = f"{name}@{args.alias}"
    detail = f"version {version}{what}, {bundle.digest.hex()}; before: {before or 'none'}"
    _record(config, f"{args.what} bundle", alias, detail)
    lines = [f"{alias}: version {version}{what} (before: {before or 'none'})"]
    if config.run.bundle != alias:
        lines.append(
            f'set run.bundle = "{alias}" in {config.file.name}; it is {config.run.bundle!r}'
        )
    lines.append(f"then sign it for the devices: gridfed-aggregator announce {config.file}")
    data = {"name": name, "version": version, "alias": args.alias, "before": before}
    return CommandResult(data, "\n".join(lines))


def _record(config: AggregatorConfig, act: str, subject: str, detail: str) -> None:
    if exists(config.database):
        apply_orders(config, [ControlOrder("record", subject[:64], op=act, detail=detail[:1000])])


_ALIAS = re.compile(r"[a-z][a-z0-9-]{0,31}")
_PART = ".part-"


def add_version(registry: BundleRegistry, bundle: ModelBundle, source: Path) -> None:
    """Copy a verified bundle with its signature; raise BundleRegistryError if the version has other content."""
    manifest = bundle.manifest
    if manifest.version in registry.versions(manifest.name):
        if registry.open(manifest.name, manifest.version).digest != bundle.digest:
            raise BundleRegistryError(
                f"bundle {manifest.name!r} version {manifest.version} exists with other content",
                hint="export it under a higher --bundle-version",
            )
        return
    names = (MANIFEST, SIGNATURE, *manifest.files)
    _write(registry, manifest, {one: (source / one).read_bytes() for one in names})


def released_again(registry: BundleRegistry, name: str, version: int, root: Signer) -> ModelBundle:
    """Release the content of a version again, under the next version, signed by the root.

    Raises:
        BundleFileError: The version is missing or damaged.
    """
    before = registry.open(name, version)
    manifest = replace(before.manifest, version=registry.versions(name)[-1] + 1)
    path, raw = registry.path(name, version), manifest.canonical()
    files = {one: (path / one).read_bytes() for one in manifest.files}
    _write(registry, manifest, {MANIFEST: raw, SIGNATURE: seal(root, raw), **files})
    return registry.open(name, manifest.version)


def sign_version(registry: BundleRegistry, name: str, version: int, root: Signer) -> None:
    path = registry.path(name, version)
    write_atomically(path / SIGNATURE, seal(root, (path / MANIFEST).read_bytes()), 0o600)


def move_alias(registry: BundleRegistry, name: str, alias: str, version: int) -> int | None:
    """Let an alias name a version in one atomic step; return the version that it named before.

    Raises:
        BundleRegistryError: The alias is malformed, or the version is missing.
    """
    if not _ALIAS.fullmatch(alias):
        raise BundleRegistryError(
            f"--alias: expected up to 32 of a-z, 0-9 and -, from a letter on, got {alias!r}"
        )
    registry.path(name, version)
    aliases = registry.aliases()
    before = aliases.get(name, {}).get(alias)
    aliases.setdefault(name, {})[alias] = version
    make_private_folder(registry.folder)
    text = json.dumps(aliases, indent=1, sort_keys=True)
    write_atomically(registry.folder / ALIASES, text.encode(), 0o600)
    return before


def _write(registry: BundleRegistry, manifest: Manifest, contents: Mapping[str, bytes]) -> None:
    home = registry.folder / manifest.name
    make_private_folder(home)
    for part in home.glob(f"{_PART}*"):  # of a process that was killed
        shutil.rmtree(part, ignore_errors=True)
    part = home / f"{_PART}{secrets.token_hex(8)}"
    make_private_folder(part)
    for name, content in contents.items():
        with open_private(part / name, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    part.rename(home / str(manifest.version))
    _flush(home)


def _flush(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
