"""Begin a rollout, and move it by devices' reports and an operator's orders.

The root signs the description once, with the version that devices return to; from then on the aggregator's key
suffices, so a return needs no root key. Every change is one transaction with the stage that it announces:
a daemon that is killed continues with the last one, and publishes it again when it connects.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from aggregator.audit_log import DAEMON, AuditLog, Initiator
from aggregator.bundles import ModelBundle
from aggregator.config import AggregatorConfig, registry_of
from aggregator.config.bundle_registry import bundle_keys
from aggregator.extensions.rollouts.rollout_table import DeviceTrial, RolloutChange, RolloutTable
from aggregator.extensions.rollouts.stages import (
    DayResults,
    Phase,
    RolloutError,
    RolloutState,
    log_evidence,
)
from aggregator.operations.commands import OrderError
from aggregator.rounds.announcements import Ends, Publication
from aggregator.store.store import Store
from aggregator.store.types import DownloadBody
from edge_sdk.app.cli import fields
from edge_sdk.app.clock import Clock
from edge_sdk.errors import Refused
from edge_sdk.extensions.rollouts.messages import RolloutMessage, StageMessage, TrialMessage
from edge_sdk.extensions.rollouts.rollout_roles import role
from edge_sdk.protocol import topics
from edge_sdk.protocol.codec import decode
from edge_sdk.protocol.envelope import ALL, ROOT, digest, ref, unproved, unseal
from edge_sdk.protocol.keys import kid_of
from edge_sdk.protocol.messages import CHUNK_LIMIT
from edge_sdk.protocol.root_keys import read_root

logger = logging.getLogger(__name__)

DAY = 86_400_000
ACTS = ("pause", "resume", "abort")
_ARCHIVES = "rollout/"  # under no run's name, so that no run's bundles displace the archive


@dataclass(frozen=True, slots=True)
class RolloutGate:
    """The waves of a rollout, and the conditions of a stage."""

    # shares of the fleet that serve the version, rising
    waves: tuple[float, ...] = (0.01, 0.05, 0.25, 1.0)
    days: int = 3  # days with results that a stage needs
    least: int = 5  # devices with a result that such a day needs
    margin: float = 0.015  # share of error beyond which a day is lost
    shadow: float = 1.0  # least share of the fleet that scores the version; scoring serves nothing
    bound: float = 0.01  # most probability of a stop without harm


@dataclass(frozen=True, slots=True)
class OpenRollout:
    """The newest rollout of a fleet."""

    plan: RolloutMessage  # its signed description
    of: bytes  # reference of the description
    state: RolloutState
    begun: int = 0  # day on which it began; no member compares earlier days


def newest(store: Store, fleet: str) -> OpenRollout | None:
    """Return the newest rollout with its stage, or None."""
    payload = store.announcements.get(topics.common(fleet, RolloutMessage.kind))
    changes = store.table(RolloutTable).changes()
    if not payload or not changes:
        return None
    body, last = unproved(payload), changes[-1]
    return OpenRollout(decode(RolloutMessage, body), last.of, _state(last), changes[0].since)


def _state(change: RolloutChange) -> RolloutState:
    phases: Mapping[str, Phase] = {one: one for one in ("run", "pause", "return", "done")}
    return RolloutState(phases[change.phase], change.stage, change.since, change.why)


def day_results(
    plan: RolloutMessage, state: RolloutState, trials: Iterable[DeviceTrial]
) -> dict[int, DayResults]:
    """Return the results of members by day; those of other devices do not count.

    A device that draws no place in the present stage has no reason to report.
    """
    lost: Counter[int] = Counter()
    kept: Counter[int] = Counter()
    serving: Counter[int] = Counter()
    for trial in trials:
        place = role(plan, state.stage, trial.device)
        if place == "none":
            continue
        for day, (is_lost, is_serving) in trial.results.items():
            (lost if is_lost else kept)[day] += 1
            serving[day] += is_serving and place == "serve"
    return {day: DayResults(lost[day], kept[day], serving[day]) for day in {*lost, *kept}}


def begin(
    config: AggregatorConfig, store: Store, ends: Ends, payload: bytes, *, by: Initiator, now: int
) -> RolloutMessage:
    """Save and announce a signed description, its archive and its first stage.

    Raises:
        OrderError: It is not signed by the root, another rollout runs, or the archive is not the one
            that it names.
    """
    plan = _verified(config, payload)
    open_ = newest(store, config.fleet)
    of = ref(digest(unproved(payload)))
    if open_ is not None and open_.of == of:
        return plan  # the same order again, after a crash
    if open_ is not None and not open_.state.is_over:
        raise OrderError(
            f"rollout of {open_.plan.name} version {open_.plan.version} runs",
            hint="gridfed-aggregator rollout abort",
        )
    if open_ is not None and plan.serial <= open_.plan.serial:
        raise OrderError(f"rollout {plan.serial} is not newer than {open_.plan.serial}")
    registry = registry_of(config)
    bundle = registry.open(plan.name, plan.version)
    if bundle.digest != plan.digest:
        raise OrderError(f"bundle {plan.name} version {plan.version} is not the described archive")
    body = DownloadBody("bundle", bundle.digest[:16], bundle.archive, CHUNK_LIMIT, _ARCHIVES)
    state = RolloutState(since=now // DAY, why="start")
    description = {topics.common(config.fleet, RolloutMessage.kind): payload}
    subject = f"{plan.name} version {plan.version}"
    _save(store, ends, of, subject, state, by=by, now=now, more=description, contents=[body])
    return plan


def describe(
    bundle: ModelBundle, served: bytes, *, serial: int, salt: bytes, gate: RolloutGate
) -> RolloutMessage:
    """Return the description of a rollout of a bundle, beside a served archive."""
    return RolloutMessage(
        serial=serial,
        name=bundle.manifest.name,
        version=bundle.manifest.version,
        digest=bundle.digest,
        size=len(bundle.archive),
        served=served,
        salt=salt,
        waves=gate.waves,
        shadow=gate.shadow,
        days=gate.days,
        least=gate.least,
        margin=gate.margin,
        bound=gate.bound,
    )


def _verified(config: AggregatorConfig, payload: bytes) -> RolloutMessage:
    root = read_root(config.root_public)
    delegates = {kid_of(key): key for key in bundle_keys(config)}
    try:
        sealed = unseal(
            payload,
            kind=RolloutMessage.kind,
            sender=ROOT,
            recipient=ALL,
            fleet=config.fleet,
            key_of=lambda _sender, kid: root.key(kid) or delegates.get(kid),
            is_enough=lambda signers: (
                root.is_enough(signers) or bool(set(delegates.values()) & set(signers))
            ),
        )
        return decode(RolloutMessage, sealed.body)
    except Refused as refused:
        raise OrderError(f"rollout: the description is refused: {refused}") from refused


def _save(
    store: Store,
    ends: Ends,
    of: bytes,
    subject: str,
    state: RolloutState,
    *,
    by: Initiator,
    now: int,
    more: Mapping[str, bytes] | None = None,
    contents: Iterable[DownloadBody] = (),
) -> dict[str, bytes]:
    """Save a change with its signed stage in one transaction; return the announcements."""
    stage = StageMessage(store.announcements.next_serial(), of, state.phase, state.stage)
    topic = topics.common(ends.fleet, StageMessage.kind)
    published = {**(more or {}), topic: ends.to_all(stage)}
    who = "" if by == DAEMON else by.actor
    change = RolloutChange(of, state.phase, state.stage, state.since, state.why, who, now)
    audit_log = AuditLog(store, ends.fleet, ends.signer, lambda: now)
    with store.transaction():
        store.table(RolloutTable).change(change)
        store.announce(published, list(contents))
        detail = f"phase {state.phase}, stage {state.stage}, of {of.hex()}"
        audit_log.record(by, "rollout", subject, reason=state.why, detail=detail)
    about = {"of": of.hex(), "phase": state.phase, "stage": state.stage, "why": state.why}
    logger.info("rollout changed %s", fields(**about, who=who or "-"))
    return published


class RolloutControl:
    """The rollout of a running daemon."""

    def __init__(
        self, store: Store, ends: Ends, clock: Clock, publish: Callable[[list[Publication]], None]
    ) -> None:
        self._store, self._ends, self._clock, self._publish = store, ends, clock, publish
        self._open = newest(store, ends.fleet)
        self._judged_on = -1  # day of the last judgement of these reports

    @property
    def state(self) -> RolloutState | None:
        """State of the newest rollout; None without one."""
        return None if self._open is None else self._open.state

    def begin(self, config: AggregatorConfig, payload: bytes, *, by: Initiator) -> str:
        """Begin the rollout of a signed description; return a one-line result."""
        plan = begin(config, self._store, self._ends, payload, by=by, now=self._clock.wall())
        self._open, self._judged_on = newest(self._store, self._ends.fleet), -1
        wanted = (RolloutMessage.kind, StageMessage.kind)
        found = [topics.common(self._ends.fleet, kind) for kind in wanted]
        self._publish([Publication(one, self._store.announcements.get(one)) for one in found])
        return f"rollout of {plan.name} version {plan.version} is running"

    def record(self, device: str, trial: TrialMessage) -> bool:
        """Record a member's report; return False for one that is not of this rollout's members.

        Days before the rollout do not count: evidence grows with every day that a device loses, so
        a device that lies about the past could stop any rollout alone.
        """
        open_ = self._open
        if open_ is None or trial.of != open_.of:
            return False
        if role(open_.plan, open_.state.stage, device) == "none":
            return False
        today = self._clock.wall() // DAY
        if trial.day >= today + 1:  # not complete anywhere yet
            return False
        is_serving = trial.state == "serve"
        results = {
            trial.day - back: (word == 2, is_serving)
            for back, word in enumerate(trial.lost)
            if word and trial.day - back >= open_.begun
        }
        report = DeviceTrial(device, trial.state, trial.day, results)
        self._store.table(RolloutTable).record(open_.of, report)
        self._judged_on = -1
        return True

    def advance(self) -> None:
        """Judge new reports; announce the next stage, or the return, if one is due."""
        today = self._clock.wall() // DAY
        if self._open is None or self._open.state.is_over or self._judged_on == today:
            return
        self._judged_on = today
        plan, of, state = self._open.plan, self._open.of, self._open.state
        days = day_results(plan, state, self._store.table(RolloutTable).trials(of))
        is_drawn = bool(_places(self._store, plan, state.stage)["serve"])
        after = state.advanced(plan, days, today, drawn=is_drawn)
        if after != state:
            self._change(self._open, after, DAEMON)

    def act(self, act: str, by: Initiator, why: str = "") -> str:
        """Pause, resume or abort the rollout; return a one-line result.

        Args:
            act: One of ``ACTS``.

        Raises:
            OrderError: There is no rollout, or its phase does not allow the act.
        """
        if self._open is None:
            raise OrderError("no rollout", hint="gridfed-aggregator rollout start BUNDLE")
        state, today = self._open.state, self._clock.wall() // DAY
        acts: Mapping[str, Callable[[], RolloutState]] = {
            "pause": state.paused,
            "resume": lambda: state.resumed(today),
            "abort": lambda: state.aborted(today),
        }
        if act not in acts:
            raise OrderError(f"rollout: unknown act {act!r}; known: {', '.join(ACTS)}")
        try:
            after = acts[act]()
        except RolloutError as error:
            raise OrderError(str(error)) from error
        if after != state:
            reason = f"operator: {why}" if why else after.why
            self._change(self._open, replace(after, why=reason), by)
        return f"rollout of {self._open.plan.name} version {self._open.plan.version}: {after.phase}"

    def _change(self, open_: OpenRollout, after: RolloutState, by: Initiator) -> None:
        now, subject = self._clock.wall(), f"{open_.plan.name} version {open_.plan.version}"
        published = _save(self._store, self._ends, open_.of, subject, after, by=by, now=now)
        self._open = replace(open_, state=after)
        self._publish([Publication(topic, payload) for topic, payload in published.items()])


def summary(store: Store, fleet: str) -> dict[str, Any]:
    """Return the newest rollout in plain words, with every change; empty without one.

    Devices that have reported nothing are counted as such: they keep the served version.
    """
    open_ = newest(store, fleet)
    if open_ is None:
        return {}
    plan, state, trials = open_.plan, open_.state, store.table(RolloutTable).trials(open_.of)
    places = _places(store, plan, state.stage)
    reported = Counter(one.state for one in trials)
    days = day_results(plan, state, trials)
    return {
        "bundle": plan.name,
        "version": plan.version,
        "phase": state.phase,
        "stage": state.stage,
        "waves": [round(100 * one, 4) for one in plan.waves],
        "why": state.why,
        "places": {name: places[name] for name in ("none", "score", "serve")},
        "reported": {**dict(sorted(reported.items())), "nothing": places.total() - len(trials)},
        "days passed": len(state.passed(plan, days, drawn=bool(places["serve"]))),
        "days needed": plan.days,
        "evidence of harm": round(math.exp(min(0.0, _share(days, plan))), 6),
        "days": {
            str(day): {"lost": one.lost, "kept": one.kept, "serving": one.serving}
            for day, one in sorted(days.items())
        },
        "changes": [
            {
                "phase": one.phase,
                "stage": one.stage,
                "why": one.why,
                "who": one.who,
                "time": one.time,
            }
            for one in store.table(RolloutTable).changes(open_.of)
        ],
    }


def _places(store: Store, plan: RolloutMessage, stage: int) -> Counter[str]:
    enrolled = (one.id for one in store.devices.all() if one.state != "revoked")
    return Counter(role(plan, stage, device) for device in enrolled)


def _share(days: Mapping[int, DayResults], plan: RolloutMessage) -> float:
    return log_evidence(days) + math.log(plan.bound)
