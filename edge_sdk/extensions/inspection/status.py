"""Show the state of a device: run, outbox, history, forecast, privacy budget and limits.

Reads the store, also beside a running agent. No measured value is shown: the errors of the forecast's
candidates are relative to that of the fleet's model.

  gridfed-edge status meter.toml
  gridfed-edge status meter.toml --json
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edge_sdk.app.cli import CommandResult
from edge_sdk.commands import add_config
from edge_sdk.config import PARTICIPATIONS, Config
from edge_sdk.errors import Reason
from edge_sdk.forecasting.forecast import FLEET
from edge_sdk.link.fleet_settings import ALONE
from edge_sdk.privacy.ledger import ParticipationCharges, PrivacyAccount
from edge_sdk.privacy.noise_calibration import NoisePlan
from edge_sdk.protocol import messages as m
from edge_sdk.session.announcements import saved_message
from edge_sdk.session.durable_outbox import REMEDIES
from edge_sdk.session.identity import STEP, find_releases, place_of
from edge_sdk.session.key_ring import PAPER, REMEDY, named
from edge_sdk.session.participation import BUDGET_EXHAUSTED, declined_runs
from edge_sdk.store import WIPE_ORDERED, WIPED
from edge_sdk.store.schema import FILE
from edge_sdk.store.store import DeviceStore
from edge_sdk.training import bootstrap
from edge_sdk.training.active_run import RETURNS
from edge_sdk.training.extension import entries_of
from edge_sdk.training.privacy_accountant import former_charges
from edge_sdk.training.run_role import history_of

add_arguments = add_config


def run(args: Namespace) -> CommandResult:
    """Return the status of the device, and that of each further participation."""
    config = Config.load(args.config)
    own, *further = config.participants()
    found = status(own, charges_beside(config, own.id))
    if further:
        found[PARTICIPATIONS] = {
            one.id: status(one, charges_beside(config, one.id))
            for one in further
            if (one.state / FILE).exists()
        }
    lines = [f"{key}: {plain(value)}" for key, value in found.items()]
    return CommandResult(found, "\n".join(lines))


def status(config: Config, beside: tuple[ParticipationCharges, ...] = ()) -> dict[str, Any]:
    """Read a device's state beside a running agent. It contains no measured value."""
    with DeviceStore.open(config.state, read_only=True) as store:
        numbers, learned, outbox = store.numbers(), store.learned(), store.outbox()
        announced = announced_of(store)
        plan = bootstrap.plan_of(config, announced)
        method = announced.method if announced else config.accept.methods[0]
        account, one = account_of(config, store, plan, beside), plan.release()
        exhausted = "" if account.has_room(one) else BUDGET_EXHAUSTED
        return {
            "id": config.id,
            "fleet": config.fleet or None,
            **({"alone": ALONE} if config.is_alone else {}),
            "key": place_of(config),
            "bundle": announced.name if announced else config.bundle,
            "method": announced.method if announced else None,
            "run": learned.run if learned else 0,
            "round": learned.round if learned else -1,
            "version": learned.version if learned else -1,
            "life": numbers.life,
            "spent": numbers.spent,
            "outbox": [{"round": e.round, "attempts": e.attempts} for e in outbox],
            "models returned": store.fact(RETURNS),
            "starts": store.fact("starts"),
            "connections": store.fact("conn"),
            **({"declined": dict(declined)} if (declined := declined_runs(store)) else {}),
            **({"root refused": root} if (root := _refused_root(store)) else {}),
            "stopped": _stopped(store) or exhausted,
            "readings": len(store.readings),
            "bytes": store.size(),
            "history": kept(config, store, announced),
            "forecast": {"served": FLEET},
            **_saved_by_extensions(config, method, store),
            "privacy": config.guarded(plan.guarantee),
            "budget": account.summary(one),
            **_replacement(config, store),
        }


def _refused_root(store: DeviceStore) -> str:
    pair = store.paper(PAPER)
    if not pair:
        return ""
    own, other = named(pair)
    return f"the fleet announces root {other}, this device trusts {own}: {REMEDY}"


def _replacement(config: Config, store: DeviceStore) -> dict[str, Any]:
    step, entries = store.fact(STEP), config.index.having("pending")
    return {"identity key": entries[0].load("pending")(config, step)} if step and entries else {}


def _saved_by_extensions(config: Config, method: str, store: DeviceStore) -> dict[str, Any]:
    index = config.index
    recorded = (x for x in index.having("records") if store.has_papers(x.row["records"]))
    names = {entry.name for entry in (*entries_of(config, method), *recorded)}
    loaded = (entry.load("saved") for name, entry in index.items() if name in names)
    found = {n: value for saved in loaded if saved for n, value in saved(config, store).items()}
    return index.off(config.tables) | found


def _stopped(store: DeviceStore) -> str:
    if store.fact(WIPED) or store.fact(WIPE_ORDERED):
        return "wiped" if store.fact(WIPED) else "to be wiped"
    return "command" if store.fact("stopped") else _refused(store)


def _refused(store: DeviceStore) -> str:
    code = store.fact("refused")
    return f"{Reason(code).name}: {REMEDIES[Reason(code)]}" if code else ""


def kept(config: Config, store: DeviceStore, announced: m.BundleMessage | None) -> dict[str, Any]:
    """Return the days of readings stored, and the maximum days and bytes of the history."""
    history = history_of(config, bootstrap.open_bundle(config, announced).manifest)
    span = store.readings.span()
    days = 0.0 if span is None else (span[1] - span[0] + 1) * history.step / 86_400
    most = {"days at most": round(history.days, 2), "bytes at most": history.bytes}
    return {"days": round(days, 2), **most, "limit": history.limit}


def plain(value: object) -> str:
    """Format a value of the status.

    >>> plain({"epsilon": 29.99999999998864, "left": None}), plain([]), plain("")
    ('epsilon 30, left unlimited', 'none', 'no')
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {plain(item)}" for key, item in value.items())
    if value is None:
        return "unlimited"
    if value == "":
        return "no"
    if isinstance(value, list):
        return "; ".join(map(plain, value)) or "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def announced_of(store: DeviceStore) -> m.BundleMessage | None:
    return saved_message(store, m.BundleMessage, "bundle")


def account_of(
    config: Config,
    store: DeviceStore | None,
    plan: NoisePlan,
    beside: tuple[ParticipationCharges, ...] = (),
) -> PrivacyAccount:
    """Sum the charges of the ledger, and the releases that only another count has recorded.

    Args:
        store: Its store; None if there is none.
        plan: Its privacy mechanism.
        beside: Charges of the device's other participations.
    """
    found = find_releases(config, store)
    spent = found.releases
    if store is None:
        account = PrivacyAccount(limit=plan.limit, most=plan.most(None))
    else:
        account, spent = bootstrap.account_of(store, plan), max(spent, store.numbers().spent)
    limits = (account.most, *(other.allowed for other in beside))
    most = min((limit for limit in limits if limit is not None), default=None)
    account = account.plus(*plan.unseen(0, spent - account.released))
    return replace(account, beside=beside, most=most, is_counted=not found.is_lost)


def charges_beside(config: Config, name: str) -> tuple[ParticipationCharges, ...]:
    """Return the charges of the device's other participations, former ones included.

    Args:
        name: Id of the participation whose own charges are left out.

    Raises:
        EdgeError: A state folder or a bundle cannot be read.
    """
    others = [one for one in config.participants() if one.id != name]
    found = tuple(_charges_of(one) for one in others if (one.state / FILE).exists())
    return (*found, *former_charges(config))


def _charges_of(one: Config) -> ParticipationCharges:
    with DeviceStore.open(one.state, read_only=True) as store:
        account = account_of(one, store, bootstrap.plan_of(one, announced_of(store)))
        allowed = store.fact("releases allowed", -1)
    most = allowed if allowed >= 0 else None
    return ParticipationCharges(account.charges, account.released, most, account.is_counted)
