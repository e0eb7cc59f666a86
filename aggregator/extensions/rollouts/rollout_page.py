"""Collect the console's values of the newest rollout: its page and its notices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from aggregator.config import AggregatorConfig
from aggregator.extensions.rollouts.rollout_control import OpenRollout, newest, summary
from aggregator.extensions.rollouts.rollout_table import RolloutTable
from aggregator.store.opener import open_store
from aggregator.store.store import Store
from edge_sdk.app.clock import DAY
from edge_sdk.protocol import topics
from edge_sdk.protocol.codec import decode
from edge_sdk.protocol.envelope import unproved
from edge_sdk.protocol.messages import BundleMessage

ADDRESS = "/rollout"


def rollout_values(config: AggregatorConfig, _query: Mapping[str, str]) -> dict[str, Any]:
    """Return the newest rollout: its stage, places, daily results and changes."""
    with open_store(config.database, read_only=True) as store:
        found = summary(store, config.fleet)
    return {
        "rollout": found,
        "sentence": rollout_sentence(found),
        "is_open": found.get("phase") in ("run", "pause"),
    }


def fleet_rollout(config: AggregatorConfig, _query: Mapping[str, str]) -> dict[str, Any]:
    """Return the notices about the newest rollout, and a sentence on its stage while it is open."""
    with open_store(config.database, read_only=True) as store:
        open_ = newest(store, config.fleet)
        if open_ is None:
            return {"stage": ""}
        served = _announced(config, store) if open_.state.phase == "done" else frozenset()
    return {"notices": rollout_notices(open_, served), "stage": stage_sentence(open_)}


def device_days(config: AggregatorConfig, device: str) -> Iterator[tuple[int, str, str, bool]]:
    """Yield the days of a device in the newest rollout: end, action, result, whether it lost."""
    with open_store(config.database, read_only=True) as store:
        days = store.table(RolloutTable).days(device)
    for day, is_lost, is_serving in days:
        date = datetime.fromtimestamp(day * DAY / 1000, UTC).date().isoformat()
        text = f"{'served' if is_serving else 'compared'} the rollout's version on {date}"
        yield (day + 1) * DAY, text, "lost with it" if is_lost else "not lost", is_lost


def mark(config: AggregatorConfig) -> str:
    with open_store(config.database, read_only=True) as store:
        return store.table(RolloutTable).mark()


def rollout_notices(open_: OpenRollout, announced: frozenset[bytes]) -> list[tuple[str, str]]:
    """Return text and address of the notices of a rollout that ended by itself, not by an operator's abort.

    Args:
        announced: Digests of the archives that the runs' announcements name.

    >>> from aggregator.extensions.rollouts.stages import RolloutState
    >>> from edge_sdk.extensions.rollouts.messages import RolloutMessage
    >>> plan = RolloutMessage(1, "load", 2, b"t" * 32, 900, b"s" * 32, bytes(16), (0.01, 0.05, 1.0),
    ...     0.5, 3, 5, 0.02, 0.01)
    >>> harm = OpenRollout(plan, b"", RolloutState("return", 2, why="harm"))
    >>> rollout_notices(harm, frozenset())[0][0].partition(": ")[0]
    'Rollout of load version 2 stopped at wave 5 %'
    >>> done = OpenRollout(plan, b"", RolloutState("done", 3, why="passed"))
    >>> rollout_notices(done, frozenset())[0][0].partition(".")[0]
    'Rollout of load version 2 has passed all waves'
    >>> rollout_notices(done, frozenset({plan.digest}))
    []
    """
    plan, state = open_.plan, open_.state
    name = f"Rollout of {plan.name} version {plan.version}"
    if state.phase == "return" and state.why == "harm":
        where = _where(open_)
        text = (
            f"{name} stopped {where}: members lost too many days with it. Every device returns to the "
            "served version; find the cause before a higher version is let out."
        )
        return [(text, ADDRESS)]
    if state.phase == "done" and plan.digest not in announced:
        text = (
            f"{name} has passed all waves. Promote and announce it, so that it takes part in a run."
        )
        return [(text, ADDRESS)]
    return []


def stage_sentence(open_: OpenRollout) -> str:
    """Return one sentence on the stage of an open rollout; empty if it is over.

    >>> from aggregator.extensions.rollouts.stages import RolloutState
    >>> from edge_sdk.extensions.rollouts.messages import RolloutMessage
    >>> plan = RolloutMessage(1, "load", 2, b"t" * 32, 900, b"s" * 32, bytes(16), (0.01, 0.05, 1.0),
    ...     0.5, 3, 5, 0.02, 0.01)
    >>> stage_sentence(OpenRollout(plan, b"", RolloutState(stage=2)))
    'Rollout of load version 2: at wave 5 %, stage 2 of 3.'
    >>> stage_sentence(OpenRollout(plan, b"", RolloutState("pause")))
    'Rollout of load version 2: before a device served it, stage 0 of 3, paused.'
    """
    if open_.state.is_over:
        return ""
    plan, state = open_.plan, open_.state
    paused = ", paused" if state.phase == "pause" else ""
    return (
        f"Rollout of {plan.name} version {plan.version}: {_where(open_)}, "
        f"stage {state.stage} of {len(plan.waves)}{paused}."
    )


def _where(open_: OpenRollout) -> str:
    stage = open_.state.stage
    share = 100 * open_.plan.waves[stage - 1] if stage else 0.0
    return f"at wave {share:g} %" if stage else "before a device served it"


def _announced(config: AggregatorConfig, store: Store) -> frozenset[bytes]:
    found = []
    for run in config.runs:
        topic = topics.common(config.fleet, BundleMessage.kind, topics.audience(run.name))
        if payload := store.announcements.get(topic):
            found.append(decode(BundleMessage, unproved(payload)).digest)
    return frozenset(found)


def rollout_sentence(found: Mapping[str, Any]) -> str:
    """Return one sentence about the newest rollout's state.

    Args:
        found: Summary of the rollout; empty without one.

    >>> rollout_sentence({})
    'No bundle is let out in waves now.'
    >>> now = {"bundle": "load", "version": 2, "phase": "run", "stage": 1, "waves": [1, 5.0],
    ...        "days passed": 2, "days needed": 3}
    >>> rollout_sentence(now)
    'load version 2 is served in 1 % of the fleet: stage 1 of 2, 2 of 3 days passed.'
    >>> rollout_sentence({**now, "phase": "return", "why": "harm"})
    'load version 2 is taken back from all devices, because members lost too many days with it.'
    """
    if not found:
        return "No bundle is let out in waves now."
    name, stage, waves = (
        f"{found['bundle']} version {found['version']}",
        found["stage"],
        found["waves"],
    )
    if found["phase"] == "return":
        harm = "because members lost too many days with it"
        why = harm if found["why"] == "harm" else "on an operator's order"
        return f"{name} is taken back from all devices, {why}."
    if found["phase"] == "done":
        return f"{name} has passed all waves: announce it, so that it takes part in a run."
    where = (
        f"served in {waves[stage - 1]:g} % of the fleet" if stage else "scored, served by no device"
    )
    days = f"{found['days passed']} of {found['days needed']} days passed"
    paused = (
        " It is paused: no further device begins to serve it." if found["phase"] == "pause" else ""
    )
    return f"{name} is {where}: stage {stage} of {len(waves)}, {days}.{paused}"
