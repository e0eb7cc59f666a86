"""Show the cost of a round, and the rest of the privacy budget and resource limits.

Exits with 1 when the privacy budget is spent: no further update is sent, and the device trains
for itself. With several participations the budget and the limits are those of all together.
--datasheet prints what NIST SP 800-226 asks of a privacy claim, from the configuration and the
ledger.

Releases are counted in the state folder and in a file beside the device's key. Where both counts are
lost, nothing is released until the owner says that releases may have left which are not counted:
--accept-loss begins a new count. Stop the agent first.

  gridfed-edge budget meter.toml
  gridfed-edge budget meter.toml --datasheet
  gridfed-edge budget meter.toml --accept-loss
"""

from __future__ import annotations

import logging
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from edge_sdk.app.cli import CommandResult, fields
from edge_sdk.bundle import SDK_VERSION
from edge_sdk.commands import add_config, add_participation, participant
from edge_sdk.config import Config
from edge_sdk.errors import OK, RUNTIME, ConfigError
from edge_sdk.extensions.inspection import datasheet as sheets
from edge_sdk.extensions.inspection.release_count import (
    REMEDY,
    UNKNOWN_COUNT,
    ReleaseCount,
    read_counts,
)
from edge_sdk.extensions.inspection.status import (
    account_of,
    announced_of,
    charges_beside,
)
from edge_sdk.limits import DailyQuota, lesser, limits_of
from edge_sdk.link.fleet_settings import ALONE
from edge_sdk.privacy.ledger import ParticipationCharges, PrivacyAccount
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from edge_sdk.session.identity import begin_count, find_releases, load_signer
from edge_sdk.store.schema import FILE
from edge_sdk.store.store import DeviceStore
from edge_sdk.training import bootstrap
from edge_sdk.training.training_transaction import update_bytes

logger = logging.getLogger(__name__)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    add_config(parser)
    add_participation(parser)
    parser.add_argument(
        "--datasheet", action="store_true", help="print the privacy data sheet of this device"
    )
    text = "begin a new count of releases: earlier ones that are not counted may exceed the budget"
    parser.add_argument("--accept-loss", action="store_true", help=text)


def run(args: Namespace) -> CommandResult:
    """Return the cost of a round and the budget, or the data sheet."""
    device = Config.load(args.config)
    config = participant(device, args.participation)
    if args.accept_loss:
        return _accept_loss(device, config)
    beside = charges_beside(device, config.id)
    if args.datasheet:
        sheet = datasheet(config, beside)
        return CommandResult(sheet, sheets.as_text(sheet))
    found = budget(config, beside)
    found["limits"] = resource_usage(*device.participants())
    rows = "\n".join(map(_usage_line, found["limits"].items()))
    prose = (
        f"{ALONE}; in a fleet:\n"
        * config.is_alone
        + f"{found['bundle']}: {found['shared']} scalars shared, {found['personal']} stay here\n"
        f"a round costs {found['bytes_up']} bytes up and about {found['bytes_down']} down\n"
        f"{found.pop('text')}\n{_allowance_line(found)}\n{rows}"
    )
    return CommandResult(found, prose, RUNTIME if found["spent"] else OK)


def budget(config: Config, beside: tuple[ParticipationCharges, ...] = ()) -> dict[str, Any]:
    """Return the bytes and the privacy cost of a round, and the used and remaining budget.

    ``text`` explains it in sheets.

    Args:
        beside: Charges of the device's other participations.

    Raises:
        EdgeError: The bundle is missing, or the privacy section cannot be satisfied.
    """
    announced, allowed = None, -1
    if (config.state / FILE).exists():
        with DeviceStore.open(config.state, read_only=True) as store:
            announced = announced_of(store)
            plan = bootstrap.plan_of(config, announced)
            allowed = store.fact("releases allowed", -1)
            account = account_of(config, store, plan, beside)
    else:
        plan = bootstrap.plan_of(config, None)
        account = account_of(config, None, plan, beside)
    manifest = bootstrap.open_bundle(config, announced).manifest
    spec = manifest.spec(announced.shared if announced else None)
    method = announced.method if announced else "analytic"
    uses = _extension_uses(config, account)
    return {
        "bundle": manifest.name,
        "layers": _layers(spec),
        "shared": spec.shared_size,
        "personal": spec.size - spec.shared_size,
        "bytes_up": update_bytes(config, manifest, spec, method),
        "bytes_down": 4 * spec.shared_size,
        "releases": account.released_by_device,
        "privacy": plan.guarantee,
        "budget": account.summary(plan.release()),
        "spent": not account.has_room(plan.release()),
        "counted in": str(config.counted_in),
        "count lost": not account.is_counted,
        "allowed by the operator": None if allowed < 0 else allowed,
        "charges": sheets.charges_table(account),
        **{name: use for found, _ in uses for name, use in found.items()},
        "not protected": sheets.gaps(plan),
        "text": "\n".join(
            (
                *_count_lines(config, account),
                sheets.explain_budget(plan, account),
                *(line for _, text in uses for line in ("", text)),
            )
        ),
        "limits": resource_usage(config),
    }


def _extension_uses(config: Config, account: PrivacyAccount) -> list[tuple[dict[str, Any], str]]:
    points, configured = (
        {charge.point for charge in account.charges},
        config.index.configured(config.tables),
    )
    entries = [one for one in config.index.values() if "budget" in one.row]
    return [
        one.load("budget")(config, account)
        for one in entries
        if one in configured or one.row["charges"] in points
    ]


def _count_lines(config: Config, account: PrivacyAccount) -> list[str]:
    if account.is_counted:
        return []
    why = find_releases(config, None).why or f"{config.counted_in}: file not found"
    return [f"NO UPDATE LEAVES: {UNKNOWN_COUNT} ({why})", REMEDY, ""]


def _accept_loss(device: Config, config: Config) -> CommandResult:
    with ExitStack() as opened:
        has_state = (config.state / FILE).exists()
        store = opened.enter_context(DeviceStore.open(config.state)) if has_state else None
        if not find_releases(config, store).is_lost:
            raise ConfigError(
                f"budget: the releases of {config.id} are counted in {config.counted_in}: nothing is lost"
            )
        key = load_signer(device)
        begin_count(device, key)
    count = read_counts(device.counted_in, key.public).get(config.further_id, ReleaseCount())
    logger.warning("release count begun %s", fields(device=config.id, releases=count.releases))
    text = (
        f"{config.id}: the count of releases begins at {count.releases}, in {config.counted_in}\n"
        "releases that left before and are not counted may exceed the budget: its claim holds for later ones"
    )
    return CommandResult({"id": config.id, "releases": count.releases}, text)


def resource_usage(config: Config, *further: Config) -> dict[str, dict[str, float | None]]:
    """Return the resource limits and the recorded use.

    ``limit`` is None where there is none; ``used`` is of the last recorded day, and for memory the
    peak. Bytes, and seconds of wake time. Bytes on the link and wake time are those of all
    participations; bytes written and memory are counted for the process.

    Args:
        config: Configuration of the device's own participation.
        further: Configurations of the others.
    """
    facts = dict.fromkeys(("used", "flash", "wake", "peak", "quota announced"), 0)
    used: dict[str, list[DailyQuota]] = {"used": [], "wake": []}
    for one in (config, *further):
        if not (one.state / FILE).exists():
            continue
        with DeviceStore.open(one.state, read_only=True) as store:
            for name in ("flash", "peak", "quota announced"):
                facts[name] = max(facts[name], store.fact(name))
            used["used"].append(DailyQuota(store.fact("day"), store.fact("used")))
            used["wake"].append(DailyQuota(store.fact("wake day"), store.fact("wake")))
    for name, days in used.items():
        newest = max((one.day for one in days), default=0)
        facts[name] = sum(one.used for one in days if one.day == newest)
    limits = limits_of(config.limits)
    link = lesser(facts["quota announced"] or None, limits.daily_link_bytes)
    return {
        "memory": {"limit": limits.memory, "used": 1024 * facts["peak"]},
        "flash a day": {"limit": limits.daily_flash_bytes, "used": facts["flash"]},
        "link a day": {"limit": link, "used": facts["used"]},
        "wake time a day": {"limit": limits.daily_wake_time, "used": facts["wake"] / 1000},
    }


def datasheet(config: Config, beside: tuple[ParticipationCharges, ...] = ()) -> dict[str, Any]:
    """Return the privacy data sheet of a device: its configuration and its releases."""
    version = ".".join(map(str, SDK_VERSION))
    if not (config.state / FILE).exists():
        plan = bootstrap.plan_of(config, None)
        return sheets.data_sheet(plan, account_of(config, None, plan, beside), version)
    with DeviceStore.open(config.state, read_only=True) as store:
        plan = bootstrap.plan_of(config, announced_of(store))
        return sheets.data_sheet(plan, account_of(config, store, plan, beside), version)


def _layers(spec: ParamSpec) -> list[dict[str, Any]]:
    return [
        {"name": layer.name, "scalars": layer.size, "shared": layer.name in spec.shared_names}
        for layer in spec.layers
    ]


def _allowance_line(found: Mapping[str, Any]) -> str:
    """Format the operator's limit on the number of releases.

    >>> _allowance_line({"allowed by the operator": 500, "releases": 12})
    'limit of the operator: 500 releases; 12 used'
    """
    allowed = found["allowed by the operator"]
    limit = "none" if allowed is None else f"{allowed} releases; {found['releases']} used"
    return f"limit of the operator: {limit}"


def _usage_line(row: tuple[str, Mapping[str, float | None]]) -> str:
    what, of = row
    unit = "seconds" if what.startswith("wake") else "bytes"
    limit = "no limit" if of["limit"] is None else f"at most {of['limit']:.0f} {unit}"
    return f"{what}: {limit}; {of['used']:.0f} {unit} used so far"
