"""Show the state of a device: run, outbox, history, forecast, privacy budget and limits.

Reads the store, also beside a running agent. No measured value is shown: the errors of the forecast's
candidates are relative to that of the fleet's model.

  gridfed-edge status meter.toml
  gridfed-edge status meter.toml --json
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from edge_sdk.app.cli import CommandResult
from edge_sdk.commands.arguments import add_config
from edge_sdk.commands.device_inspection import (
    account_of,
    announced_of,
    charges_beside,
    plan_of,
)
from edge_sdk.config import PARTICIPATIONS, Config
from edge_sdk.methods import METHODS
from edge_sdk.privacy.datasheet import guarantee
from edge_sdk.privacy.ledger import ParticipationCharges
from edge_sdk.session.body_keys import BodyKeys
from edge_sdk.session.certificate_files import CertificateFiles
from edge_sdk.session.certificate_monitor import days_left
from edge_sdk.session.connection import SIGNER_AWAY
from edge_sdk.session.durable_outbox import REMEDIES
from edge_sdk.session.identity import keys_for_request, place_of, succession_line
from edge_sdk.session.identity_keys import STEP, step_text
from edge_sdk.session.model_log import log_summary
from edge_sdk.session.participation import BUDGET_EXHAUSTED
from edge_sdk.session.renewal_schedule import NOTE, RenewalFailure, summary
from edge_sdk.session.rollout_inbox import saved_rollout
from edge_sdk.session.run_choice import declined_runs
from edge_sdk.store.erasure import WIPE_ORDERED, WIPED
from edge_sdk.store.schema import FILE
from edge_sdk.store.store import DeviceStore, LearnedState
from edge_sdk.training import bootstrap, installed_bundle
from edge_sdk.training.active_run import RETURNS
from edge_sdk.training.retention import history_of
from edge_sdk.training.saved_selection import DeviceCandidates, summary_of
from edge_sdk.training.saved_trial import saved_trial, trial_summary
from edge_sdk.wire.errors import Reason
from edge_sdk.wire.protocol import messages as m

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
    """Read a device's state beside a running agent. It contains no measured value.

    Args:
        config: Configuration of one participation.
        beside: Charges of the device's other participations.

    Raises:
        StoreError: There is no state yet.
    """
    with DeviceStore.open(config.state, read_only=True) as store:
        numbers, learned, outbox = store.numbers(), store.learned(), store.outbox()
        announced = announced_of(store)
        plan, days = plan_of(config, announced), days_left(config)
        account, one = account_of(store, plan, beside), plan.release()
        exhausted = "" if account.has_room(one) else BUDGET_EXHAUSTED
        return {
            "id": config.id,
            "fleet": config.fleet,
            "key": place_of(config),
            **({"token unreachable since": away} if (away := _away(store)) else {}),
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
            "stopped": _stopped(store) or exhausted,
            "readings": store.count_readings(),
            "bytes": store.size(),
            "history": kept(config, store, announced),
            "forecast": _served(config, store, announced),
            **({"rollout": trial} if (trial := _rollout(store)) else {}),
            **({"model log": log} if (log := log_summary(store)) else {}),
            "privacy": guarantee(plan),
            "budget": account.summary(one),
            **({"certificate days left": days} if days else {}),
            **_renewal(config, store),
            **_replacement(config, store),
            **({"encryption_key": key.hex()} if (key := BodyKeys.saved(store)) else {}),
            **_peer_exchange(learned),
        }


def _away(store: DeviceStore) -> str:
    """Return since when the agent has not reached the token of its key; empty while it does."""
    since = store.fact(SIGNER_AWAY)
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(since)) if since else ""


def _renewal(config: Config, store: DeviceStore) -> dict[str, Any]:
    """Return the state of a certificate that the device renews; empty without one."""
    file = config.broker.cert_file
    if not config.ca.url or file is None:
        return {}
    files, now = CertificateFiles(file), max(time.time(), store.fact("floor") / 1000)
    present, failure = files.present(), RenewalFailure.read(store.paper(f"source {NOTE}"))
    span = None if present is None else (present.since, present.until)
    name = "" if present is None else present.name
    is_unconfirmed = files.previous.exists()
    found = summary(config.id, name, span, now, failure, is_unconfirmed=is_unconfirmed)
    return {"certificate renewal": found}


def _replacement(config: Config, store: DeviceStore) -> dict[str, Any]:
    """Return what the replacement of the identity key waits for; empty without one."""
    if not store.fact(STEP):
        return {}
    key, former = keys_for_request(config)
    line = "" if former is None else succession_line(config, key, former)
    return {"identity key": step_text(store.fact(STEP), line)}


def _rollout(store: DeviceStore) -> dict[str, Any]:
    """Return the device's part in the rollout that it follows; empty without one."""
    return trial_summary(saved_rollout(store), saved_trial(store))


def _stopped(store: DeviceStore) -> str:
    """Return what stops the device apart from its budget; empty if nothing does."""
    if store.fact(WIPED) or store.fact(WIPE_ORDERED):
        return "wiped" if store.fact(WIPED) else "to be wiped"
    return "command" if store.fact("stopped") else _refused(store)


def _refused(store: DeviceStore) -> str:
    """Return the aggregator's refusal after which the device sends nothing, with the remedy."""
    code = store.fact("refused")
    return f"{Reason(code).name}: {REMEDIES[Reason(code)]}" if code else ""


def kept(config: Config, store: DeviceStore, announced: m.BundleMessage | None) -> dict[str, Any]:
    """Return the days of readings stored, and the maximum days and bytes of the history."""
    history = history_of(config, installed_bundle.open_bundle(config, announced).manifest)
    span = store.span_readings()
    days = 0.0 if span is None else (span[1] - span[0] + 1) * history.step / 86_400
    most = {"days at most": round(history.days, 2), "bytes at most": history.bytes}
    return {"days": round(days, 2), **most, "limit": history.limit}


def _served(
    config: Config, store: DeviceStore, announced: m.BundleMessage | None
) -> dict[str, Any]:
    """Return what the device forecasts with, and the candidates' errors relative to the fleet's."""
    bundle = installed_bundle.open_bundle(config, announced)
    found = installed_bundle.of_bundle(announced, bundle)
    learner = bootstrap.set_up(config, store, bundle, found, METHODS)
    bootstrap.recall(learner, store)
    return summary_of(config, learner, DeviceCandidates.recall(learner, store))


def _peer_exchange(learned: LearnedState | None) -> dict[str, Any]:
    """Return the state of the peer exchange, if there is one."""
    kept = learned.leaves.get("gossip") if learned is not None else None
    if kept is None:
        return {}
    epoch, step = int(kept["epoch"]), int(kept["place"][0])
    return {"neighbours": {"epoch": epoch, "step": step, "last counted": dict(kept["last"])}}


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
