"""Describe in sentences a fleet's activity, its notices, and why a device takes no part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aggregator.config import AggregatorConfig, config_schedule
from aggregator.extensions.console.overview import StoreOverview
from aggregator.extensions.console.overview_rows import ClosedRound, DeviceSummary, TimelineEntry
from aggregator.extensions.console.refusal_guide import ADVICE
from aggregator.methods import METHODS
from edge_sdk.app.clock import SystemClock
from edge_sdk.errors import Reason

# sentences for the daemon's checks that fail
CHECKS = {
    "broker": "The daemon has no link to the broker.",
    "store": "The daemon cannot write its database.",
    "disk": "The disk has too little free space; updates are refused.",
}

# meaning and remedy of each reason for which a device declines a run
DECLINED = {
    Reason.UNKNOWN_KIND: "it does not accept the method. Add it to [accept] methods of the device",
    Reason.WRONG_ENCODING: "it writes no allowed encoding. Allow another one in the run",
    Reason.PLAIN_REFUSED: "it cannot encrypt a kind of encryption.kinds. Install newer software",
    Reason.UPGRADE_REQUIRED: "its operators, [site] constants or privacy mechanism do not fit; its "
    "log says which. Install newer software, or change the settings",
    Reason.NO_WINDOWS: "it has no source of a channel. Add a [[source]] to the device",
}

STILL = 3  # rounds in a row without a new model that need a person


@dataclass(frozen=True, slots=True)
class Notice:
    """One fact that needs a person, with the page that shows it."""

    text: str
    link: str


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run on the Fleet page."""

    number: int  # number of the run; 0 if it has not begun
    name: str
    method: str
    rule: str  # rule, or ``its own``
    bundle: str
    round: int  # open round, or the last one
    version: int
    phase: str = ""  # phase as announced; empty if the daemon does not answer
    updates: str = ""  # updates of the open round as ``n of quorum``; empty if unknown
    next_round: str = ""  # start of the next round; empty if none is planned
    # bytes that the daemon has received since the open round began; None if unknown
    received: int | None = None
    sent: int | None = None  # bytes that it has sent since then; None if unknown


def happening(document: Mapping[str, Any], runs: Sequence[RunLine]) -> str:
    """Return one sentence about the fleet's activity.

    >>> run = RunLine(1, "", "fedavg", "mean", "toy", 4, 3, "train", "5 of 8")
    >>> happening({"schema": 2}, [run])
    'Round 4 is open: 5 of 8 updates have arrived.'
    >>> happening({}, [run])
    'The daemon does not answer; the pages show the database as it was left.'
    """
    if not document:
        return "The daemon does not answer; the pages show the database as it was left."
    parts = [_run_sentence(run, is_only=len(runs) == 1) for run in runs]
    return " ".join(parts) or "No run has begun."


def _run_sentence(run: RunLine, *, is_only: bool) -> str:
    name = "" if is_only else f"Run {run.name or run.number}: "
    if run.phase == "stop":
        return f"{name}The run is complete after version {run.version}."
    if run.phase == "pause" and run.next_round:
        return f"{name}The next round begins {run.next_round}."
    if run.phase == "pause":
        return f"{name}The fleet is paused in round {run.round}; devices keep forecasting."
    return f"{name}Round {run.round} is open: {run.updates} updates have arrived."


def notices(document: Mapping[str, Any], states: Mapping[str, int]) -> list[Notice]:
    """Return the notices for the operator, most urgent first.

    >>> notices({"schema": 2, "halted": "defect"}, {"quarantined": 2})[0].text
    'A run is halted: defect. Resume it after the cause is removed.'
    >>> [one.link for one in notices({"schema": 2}, {"quarantined": 2})]
    ['/devices?state=quarantined']
    """
    found: list[Notice] = []
    if not document:
        found.append(Notice("The daemon does not answer. Is it running?", "/keys"))
    if "halted" in document:
        text = f"A run is halted: {document['halted']}. Resume it after the cause is removed."
        found.append(Notice(text, "/orders"))
    checks = document.get("checks", {})
    found += [
        Notice(CHECKS.get(name, f"The check {name} fails."), "/keys")
        for name, ok in checks.items()
        if not ok
    ]
    if count := states.get("quarantined", 0):
        found.append(
            Notice(
                f"{_counted(count, 'device is', 'devices are')} quarantined.",
                "/devices?state=quarantined",
            )
        )
    if "configuration" in document:
        found.append(Notice(f"The configuration is {document['configuration']}.", "/keys"))
    if "access_rules" in document:
        found.append(Notice(f"{document['access_rules']}.", "/devices"))
    return [*found, *_message_notices(document), *_expiry_notices(document)]


def still_notice(run: RunLine, rounds: int, why: str) -> list[Notice]:
    """Return the notice of a run whose newest rounds were all abandoned.

    Args:
        rounds: Rounds closed since one moved the model.
        why: Reason that the newest of them did not.

    >>> run = RunLine(1, "b", "fedavg", "mean", "toy", 39, 0, "train")
    >>> still_notice(run, 38, "too few updates")[0].text
    'Run b: none of its 38 rounds has moved the model; the newest: too few updates.'
    >>> still_notice(run, 2, "too few updates")
    []
    """
    if rounds < STILL or run.phase == "stop":
        return []
    which = f"none of its {rounds}" if run.version == 0 else f"none of its newest {rounds}"
    text = f"Run {run.name or run.number}: {which} rounds has moved the model"
    return [Notice(f"{text}{f'; the newest: {why}' if why else ''}.", f"/run?run={run.number}")]


def _message_notices(document: Mapping[str, Any]) -> list[Notice]:
    found: list[Notice] = []
    if count := document.get("dead_letters", 0):
        words = ("message met a defect and was", "messages met a defect and were")
        text = f"{_counted(count, *words)} set aside."
        found.append(Notice(text, "/refusals"))
    for device, what in document.get("flooding", {}).items():
        found.append(Notice(f"{device} sends too much: {what}", "/refusals"))
    for name, one in document.get("unanswered", {}).items():
        run = "" if name == "-" else f" of run {name}"
        text = f"Nobody has answered the last {one['rounds']} rounds{run}: {one['cause']}."
        found.append(Notice(text, "/runs"))
    for roots, count in document.get("root_refused", {}).items():
        text = f"{_counted(count, 'device refuses', 'devices refuse')} the fleet's root: {roots}."
        found.append(Notice(text, "/keys"))
    for reason, count in document.get("bundle_refused", {}).items():
        text = f"{_counted(count, 'device refuses', 'devices refuse')} the bundle: {reason}."
        found.append(Notice(text, "/refusals"))
    return found


def _counted(count: int, one: str, more: str) -> str:
    """Return a number with the words for one, or for any other number.

    >>> _counted(1, "device is", "devices are"), _counted(2, "device is", "devices are")
    ('1 device is', '2 devices are')
    """
    return f"{count} {one if count == 1 else more}"


def _expiry_notices(document: Mapping[str, Any]) -> list[Notice]:
    return [
        Notice(f"{one['kind']} {one['file']}: {one['status']}", "/keys")
        for one in document.get("certificates", ())
        if one.get("soon") or one.get("expires") is None
    ]


@dataclass(frozen=True, slots=True)
class ParticipationFacts:
    """Facts that decide whether a device takes part."""

    device: DeviceSummary
    contact: Mapping[str, Any]  # its entry among the daemon's contacts; empty if unknown
    is_daemon_up: bool
    phases: Sequence[str]
    cohorts: Sequence[Mapping[str, str]]  # labels that each run with a cohort asks for
    limit: int | None  # ``admission.max_updates``; None if there is none
    newest: Sequence[TimelineEntry]  # its newest settled updates, newest first
    # names of the runs that it has declined, with the name of the reason
    declined: Mapping[str, str] = field(default_factory=dict)


def reasons_for_absence(facts: ParticipationFacts) -> list[str]:
    """Return the reasons why a device takes no part, each with its remedy; empty if none.

    >>> gone = DeviceSummary("m", "revoked", "sold", 1, (), 0)
    >>> reasons_for_absence(ParticipationFacts(gone, {}, False, (), (), None, ()))[0]
    'It is revoked: sold. Enrol it again if that was a mistake.'
    """
    return [*_own_reasons(facts), *_fleet_reasons(facts), *_contact_reasons(facts)]


def _own_reasons(facts: ParticipationFacts) -> list[str]:
    device, found = facts.device, []
    if device.state == "revoked":
        why = device.why or "no reason was recorded"
        found.append(f"It is revoked: {why}. Enrol it again if that was a mistake.")
    if device.state == "quarantined":
        found.append(f"It is quarantined: {device.why}. Find the cause, then enrol it again.")
    if facts.limit is not None and device.spent >= facts.limit:
        found.append(
            f"Its budget is exhausted: {device.spent} of {facts.limit} updates. "
            "It keeps training for itself."
        )
    for run, name in facts.declined.items():
        meaning = DECLINED.get(Reason[name]) if name in Reason.__members__ else None
        of_run = f"run {run}" if run else "the run"
        found.append(f"It declines {of_run}, {name}{f': {meaning}' if meaning else ''}.")
    own = dict(device.labels)
    if facts.cohorts and not any(
        all(own.get(name) == value for name, value in cohort.items()) for cohort in facts.cohorts
    ):
        found.append("Its labels are in the cohort of no run. Label it, or change run.cohort.")
    if facts.newest and facts.newest[0].code:
        reason = Reason(facts.newest[0].code)
        advice = ADVICE[reason]
        text = f"{advice.meaning}. To do: {advice.remedy}"
        found.append(f"Its newest update was refused, {reason.name}: {text}.")
    return found


def _fleet_reasons(facts: ParticipationFacts) -> list[str]:
    if facts.phases and all(phase == "pause" for phase in facts.phases):
        return ["No round is open: the fleet is paused or waits for its schedule."]
    if facts.phases and all(phase == "stop" for phase in facts.phases):
        return ["Every run is complete."]
    return []


def _contact_reasons(facts: ParticipationFacts) -> list[str]:
    if roots := facts.contact.get("root refused"):
        return [f"It refuses the fleet's root: {roots}. Give it the present root.pub."]
    if not facts.is_daemon_up:
        return ["The daemon does not answer, so no device takes part at present."]
    if not facts.contact:
        return [
            "The daemon has received no message from it since its start. Check its power and link."
        ]
    state = facts.contact.get("state")
    return [f"It is {state}. Check its power and its link."] if state in {"offline", "lost"} else []


def run_lines(
    config: AggregatorConfig, store: StoreOverview, document: Mapping[str, Any]
) -> list[RunLine]:
    """Return the configured runs that have begun, with the daemon's status if it answers."""
    live = {one.get("run"): one for one in document.get("runs") or [document.get("run", {})]}
    found = []
    for view in config.views():
        begun = store.runs.latest(view.run.name)
        if begun is None:
            continue
        last = next(iter(store.rounds(begun.run, 1)), None)
        now = live.get(begun.run, {})
        plan = now.get("schedule") or document.get("schedule", {})
        found.append(
            RunLine(
                begun.run,
                begun.name,
                begun.method,
                rule_name(view),
                begun.bundle,
                now.get("round", last.round if last else 0),
                now.get("version", last.version if last else 0),
                now.get("phase", ""),
                now.get("updates", ""),
                str(plan.get("next round", "")) or planned_start(view, last, now),
                now.get("bytes received"),
                now.get("bytes sent"),
            )
        )
    return found


def rule_name(config: AggregatorConfig) -> str:
    """Return the rule of a run with its pre-aggregation, as ``nnm+krum``."""
    if config.run.method not in METHODS or METHODS[config.run.method].own:
        return "its own"
    rule = config.run.rule
    before = rule.get("preaggregation") or ()
    return "+".join([*map(str, before), str(rule.get("name", ""))])


def planned_start(
    config: AggregatorConfig, last: ClosedRound | None, now: Mapping[str, Any]
) -> str:
    """Return the start of the next round of a daemon that does not answer; empty if it does."""
    schedule = config_schedule(config)
    if now or schedule.is_continuous:
        return ""
    return schedule.text(schedule.due(last.time if last else None, SystemClock().wall()))
