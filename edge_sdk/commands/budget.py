"""Show what a round costs, and what is left of the privacy budget and the resource limits.

Exits with 1 when the privacy budget is spent: no further update is sent, and the device trains
for itself. With several participations the budget and the limits are those of all together.
--datasheet prints what NIST SP 800-226 asks of a privacy claim, from the configuration and the
ledger.

  gridfed-edge budget meter.toml
  gridfed-edge budget meter.toml --datasheet
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

from edge_sdk.app.cli import OK, RUNTIME, CommandResult
from edge_sdk.bundle import SDK_VERSION
from edge_sdk.commands.arguments import add_config, add_participation, participant
from edge_sdk.commands.device_inspection import (
    account_of,
    announced_of,
    charges_beside,
    plan_of,
)
from edge_sdk.config import Config
from edge_sdk.limits.daily_quota import DailyQuota
from edge_sdk.limits.resource_limits import lesser, limits_of
from edge_sdk.privacy import datasheet as sheets
from edge_sdk.privacy.ledger import ParticipationCharges, PrivacyAccount, epsilon_at
from edge_sdk.store.schema import FILE
from edge_sdk.store.store import DeviceStore
from edge_sdk.training import installed_bundle
from edge_sdk.training.score_reporter import POINT
from edge_sdk.wire.contract.parameter_layout import ParamSpec
from edge_sdk.wire.protocol import messages as m
from edge_sdk.wire.protocol.codec import encode
from edge_sdk.wire.protocol.msgpack_reader import binary, text

_PROOF = 72


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    add_config(parser)
    add_participation(parser)
    parser.add_argument(
        "--datasheet", action="store_true", help="print the privacy data sheet of this device"
    )


def run(args: Namespace) -> CommandResult:
    """Return the cost of a round and the budget, or the data sheet."""
    device = Config.load(args.config)
    config = participant(device, args.participation)
    beside = charges_beside(device, config.id)
    if args.datasheet:
        sheet = datasheet(config, beside)
        return CommandResult(sheet, sheets.as_text(sheet))
    found = budget(config, beside)
    found["limits"] = resource_usage(*device.participants())
    rows = "\n".join(map(_usage_line, found["limits"].items()))
    prose = (
        f"{found['bundle']}: {found['shared']} scalars shared, {found['personal']} stay here\n"
        f"a round costs {found['bytes_up']} bytes up and about {found['bytes_down']} down\n"
        f"{found.pop('text')}\n{_allowance_line(found)}\n{rows}"
    )
    return CommandResult(found, prose, RUNTIME if found["spent"] else OK)


def budget(config: Config, beside: tuple[ParticipationCharges, ...] = ()) -> dict[str, Any]:
    """Return the bytes and the privacy cost of a round, and the used and remaining budget.

    ``text`` explains it in sheets.

    Args:
        config: Configuration of one participation.
        beside: Charges of the device's other participations.

    Raises:
        EdgeError: The bundle is missing, or the privacy section cannot be satisfied.
    """
    announced, account, allowed = None, None, -1
    if (config.state / FILE).exists():
        with DeviceStore.open(config.state, read_only=True) as store:
            announced = announced_of(store)
            plan = plan_of(config, announced)
            allowed = store.fact("releases allowed", -1)
            account = account_of(store, plan, beside)
    else:
        plan = plan_of(config, None)
    account = account or PrivacyAccount(limit=plan.limit, most=plan.most(None), beside=beside)
    manifest = installed_bundle.open_bundle(config, announced).manifest
    spec = manifest.spec(announced.shared if announced else None)
    return {
        "bundle": manifest.name,
        "layers": _layers(spec),
        "shared": spec.shared_size,
        "personal": spec.size - spec.shared_size,
        "bytes_up": update_bytes(config, spec),
        "bytes_down": 4 * spec.shared_size,
        "releases": account.released_by_device,
        "privacy": sheets.guarantee(plan),
        "budget": account.summary(plan.release()),
        "spent": not account.has_room(plan.release()),
        "allowed by the operator": None if allowed < 0 else allowed,
        "charges": sheets.charges_table(account),
        **scores_use(config, account),
        "not protected": sheets.gaps(plan),
        "text": "\n".join((sheets.explain_budget(plan, account), *_score_lines(config, account))),
        "limits": resource_usage(config),
    }


def scores_use(config: Config, account: PrivacyAccount) -> dict[str, Any]:
    """Return what the answers about scores cost, and their budget; empty if none is or was sent."""
    spent = epsilon_at(account, POINT)
    if not config.scores.report and not spent:
        return {}
    allowed = config.scores.budget if config.scores.report else None
    return {"scores": {"epsilon": sheets.finite(spent), "allowed": allowed}}


def _score_lines(config: Config, account: PrivacyAccount) -> list[str]:
    """Explain the budget of the answers about scores."""
    if not (found := scores_use(config, account)):
        return []
    spent, allowed = found["scores"]["epsilon"], found["scores"]["allowed"]
    limit = "none is sent now" if allowed is None else f"{config.scores.epsilon:g} for one a day"
    of = "" if allowed is None else f" of {allowed:g}"
    text = f"answers about scores: epsilon {spent:g}{of} for the device's whole record, {limit}"
    return ["", f"{text}; they are in the charges above, too"]


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
    """Return the privacy data sheet of a device: its configuration and its releases.

    Args:
        config: Configuration of one participation.
        beside: Charges of the device's other participations.

    Raises:
        EdgeError: As ``budget``.
    """
    version = ".".join(map(str, SDK_VERSION))
    if not (config.state / FILE).exists():
        plan = plan_of(config, None)
        account = PrivacyAccount(limit=plan.limit, most=plan.most(None), beside=beside)
        return sheets.data_sheet(plan, account, version)
    with DeviceStore.open(config.state, read_only=True) as store:
        plan = plan_of(config, announced_of(store))
        return sheets.data_sheet(plan, account_of(store, plan, beside), version)


def update_bytes(config: Config, spec: ParamSpec) -> int:
    """Return the payload bytes of one update with its envelope (MQTT, TLS and IP come on top)."""
    if not spec.shared_size:
        return 0
    update = m.UpdateMessage(
        run=1,
        round=100,
        base=100,
        life=1,
        seq=100,
        spent=100,
        spec=spec.digest,
        part="delta",
        enc="f4",
        n=64,
        vals={"loss": 0.5},
        blob=bytes(4 * spec.shared_size),
    )
    return 2 + sum(
        map(len, (text("update"), text(config.id), binary(encode(update)), binary(bytes(_PROOF))))
    )


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
    """Format the use and the limit of one resource."""
    what, of = row
    unit = "seconds" if what.startswith("wake") else "bytes"
    limit = "no limit" if of["limit"] is None else f"at most {of['limit']:.0f} {unit}"
    return f"{what}: {limit}; {of['used']:.0f} {unit} used so far"
