"""Collect what the console shows of the newest rollout: its page, and what needs a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aggregator.config import AggregatorConfig
from aggregator.console.fleet_summary import Notice
from aggregator.operations.rollout_control import OpenRollout, newest, summary
from aggregator.store.opener import open_store
from aggregator.store.types import Store
from edge_sdk.wire.protocol import topics
from edge_sdk.wire.protocol.codec import decode
from edge_sdk.wire.protocol.envelope import unproved
from edge_sdk.wire.protocol.messages import BundleMessage

ADDRESS = "/rollout"


def rollout_values(config: AggregatorConfig, *, is_daemon_up: bool) -> dict[str, Any]:
    """Return the newest rollout: its stage, places, daily results and changes."""
    with open_store(config.database, read_only=True) as store:
        found = summary(store, config.fleet)
    return {
        "rollout": found,
        "sentence": rollout_sentence(found),
        "is_open": found.get("phase") in ("run", "pause"),
        "is_daemon_up": is_daemon_up,
    }


def fleet_rollout(config: AggregatorConfig) -> tuple[list[Notice], str]:
    """Return what a person must do about the newest rollout, and its stage while it is open."""
    with open_store(config.database, read_only=True) as store:
        open_ = newest(store, config.fleet)
        if open_ is None:
            return [], ""
        served = _announced(config, store) if open_.state.phase == "done" else frozenset()
    return rollout_notices(open_, served), stage_sentence(open_)


def rollout_notices(open_: OpenRollout, announced: frozenset[bytes]) -> list[Notice]:
    """Return the notices of a rollout that ended by itself; an operator's abort needs no further act.

    Args:
        open_: The rollout.
        announced: Digests of the archives that the runs' announcements name.

    Example:
        >>> from aggregator.rollouts.stages import RolloutState
        >>> from edge_sdk.wire.protocol.messages import RolloutMessage
        >>> plan = RolloutMessage(1, "load", 2, b"t" * 32, 900, b"s" * 32, bytes(16), (0.01, 0.05, 1.0),
        ...     0.5, 3, 5, 0.02, 0.01)
        >>> harm = OpenRollout(plan, b"", RolloutState("return", 2, why="harm"))
        >>> rollout_notices(harm, frozenset())[0].text.partition(": ")[0]
        'Rollout of load version 2 stopped at wave 5 %'
        >>> done = OpenRollout(plan, b"", RolloutState("done", 3, why="passed"))
        >>> rollout_notices(done, frozenset())[0].text.partition(".")[0]
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
        return [Notice(text, ADDRESS)]
    if state.phase == "done" and plan.digest not in announced:
        text = (
            f"{name} has passed all waves. Promote and announce it, so that it takes part in a run."
        )
        return [Notice(text, ADDRESS)]
    return []


def stage_sentence(open_: OpenRollout) -> str:
    """Return one sentence on the stage of an open rollout; empty if it is over.

    Example:
        >>> from aggregator.rollouts.stages import RolloutState
        >>> from edge_sdk.wire.protocol.messages import RolloutMessage
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
    """Return the digests of the archives that the announcements of the configured runs name."""
    found = []
    for run in config.runs:
        topic = topics.common(config.fleet, BundleMessage.kind, topics.audience(run.name))
        if payload := store.announced(topic):
            found.append(decode(BundleMessage, unproved(payload)).digest)
    return frozenset(found)


def rollout_sentence(found: Mapping[str, Any]) -> str:
    """Return one sentence that says what the newest rollout does.

    Args:
        found: Summary of the rollout; empty without one.

    Example:
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
