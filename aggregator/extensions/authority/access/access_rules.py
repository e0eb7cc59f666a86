"""Derive the broker's access rules from enrolments, labels and runs, and find where a file differs.

A file that was written before a device was enrolled or labelled, or before a run was named, keeps the
device from its topics, and neither broker nor device says so. Every command and the daemon derive the
rules here. The daemon corrects ``ca.access_file`` where it also has the command that makes the broker
read it again; elsewhere the difference is reported with the command that removes it.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aggregator.config import AggregatorConfig, settings_of
from aggregator.extensions.authority.access.access_changes import (
    denied_users,
    edit_access_file,
    fleets_in,
    has_patterns,
    is_denied,
    joined,
    rules_by_user,
    with_denied,
    with_users,
)
from aggregator.extensions.authority.access.mosquitto_topics import mosquitto_access
from aggregator.extensions.authority.revocation import reload_broker
from aggregator.ingress.cohort import fits
from aggregator.ingress.registry import Registry
from aggregator.methods.base.types import Neighbouring
from aggregator.operations.control_queue import waiting
from aggregator.operations.server_extensions import ServerExtension, ServerParts
from aggregator.store.opener import exists, open_store
from aggregator.store.types import EnrolledDevice
from edge_sdk.app.cli import fields
from edge_sdk.errors import Failure
from edge_sdk.link.tls_files import mark_of, qualified, unqualified
from edge_sdk.protocol.topics import ROOT

logger = logging.getLogger(__name__)

PERIOD = 10.0  # s between two comparisons: Mosquitto serves no client while it reads a large file
NAMED = 3  # users that a sentence names


def access_rules(
    config: AggregatorConfig,
    clients: Iterable[EnrolledDevice],
    *,
    is_shared: bool,
    is_by_pattern: bool = False,
    workers: Collection[str] = (),
) -> str:
    """Return the access rules of the enrolled devices, and of no other certificate.

    A revoked device has none. Neighbours may write to each other if the run's method has them: the
    configured pairs, or any two devices if the topology follows presence.

    Args:
        is_shared: Fleets share the broker: users are named FLEET.DEVICE.
        is_by_pattern: Write patterns, which give access to every certificate of the authority.
        workers: Names in the certificates of admission workers.
    """
    members = [one for one in clients if one.state != "revoked"]
    named = [run for run in config.runs if run.name]
    return mosquitto_access(
        config.fleet,
        None if is_by_pattern else [one.id for one in members],
        neighbours=_neighbours(config, members),
        is_shared=is_shared,
        runs={one.id: [run.name for run in named if fits(one, run.cohort)] for one in members},
        named_runs=[run.name for run in named],
        workers=workers,
    )


def _neighbours(
    config: AggregatorConfig, clients: Sequence[EnrolledDevice]
) -> Mapping[str, set[str]]:
    near: defaultdict[str, set[str]] = defaultdict(set)
    for view in config.views():
        settings = settings_of(view)
        if isinstance(settings, Neighbouring):
            members = {one.id for one in clients if fits(one, view.run.cohort)}
            for name, others in settings.neighbours_of(members, config.file.parent).items():
                near[name] |= others
    return near


def written_anew(before: str, fleet: str, rules: str, *, is_shared: bool) -> str:
    """Return a file with these rules of a fleet in place of all its former ones.

    A denial to a revoked device stays, unless the device has rules again. The rules of other fleets in
    the file are kept on a shared broker, and a reason to refuse on any other.

    Raises:
        ValueError: The file has rules of another fleet that must not be replaced.
    """
    gone = [user for user in denied_users(before, fleet) if f"user {user}\n" not in rules]
    if gone:
        rules = with_denied(rules, fleet, gone)
    if is_shared:
        return joined(before, fleet, rules)
    if named := fleets_in(before) - {fleet}:
        raise ValueError(f"holds the access rules of fleet {min(named)}, not of {fleet}")
    return rules


@dataclass(frozen=True, slots=True)
class AccessDifference:
    """Difference between a file of access rules and the rules that a fleet needs."""

    # users without some of their rules; an empty name stands for the patterns
    lacking: tuple[str, ...]
    excess: tuple[str, ...]  # users with rules that they must not have
    text: str  # the corrected file

    def __bool__(self) -> bool:
        return bool(self.lacking or self.excess)

    def sentence(self, path: Path) -> str:
        """Return the difference for the operator.

        >>> AccessDifference(("m1", "m2"), (), "").sentence(Path("access"))
        'access: the access rules lack topics of m1, m2'
        """
        parts = []
        if self.lacking:
            parts.append(f"lack topics of {_some(self.lacking)}")
        if self.excess:
            parts.append(f"grant {_some(self.excess)} topics that are not theirs any more")
        return f"{path}: the access rules {' and '.join(parts)}"


def _some(users: Sequence[str]) -> str:
    names = [unqualified(user)[1] or "all devices" for user in users]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"


def difference(
    text: str,
    config: AggregatorConfig,
    clients: Sequence[EnrolledDevice],
    *,
    is_shared: bool,
    spared: Collection[str] = (),
) -> AccessDifference:
    """Compare a file of access rules with the needs of enrolments, labels and runs.

    Rules of users who are no enrolled device of the fleet, and rules for topics outside of it, are not
    compared and stay: an operator's own, admission workers, devices whose enrolment waits.

    Args:
        clients: Devices of the fleet, revoked ones included.
        spared: Ids of devices whose rules are about to change otherwise.

    Raises:
        ValueError: As ``access_rules`` and ``written_anew``.
    """
    fleet, is_by_pattern = config.fleet, has_patterns(text, config.fleet)
    needed = access_rules(config, clients, is_shared=is_shared, is_by_pattern=is_by_pattern)
    wanted, present = rules_by_user(needed), rules_by_user(text)
    if fleet not in fleets_in(text):
        return AccessDifference(
            tuple(wanted), (), written_anew(text, fleet, needed, is_shared=is_shared)
        )
    skipped = {qualified(fleet, one) if is_shared else one for one in spared}
    revoked = {
        qualified(fleet, one.id) if is_shared else one.id
        for one in clients
        if one.state == "revoked"
    }
    own = {
        user: {rule for rule in rules if f" {ROOT}/{fleet}/" in rule}
        for user, rules in present.items()
    }
    lacking = [
        user
        for user, rules in wanted.items()
        if set(rules) - own.get(user, set()) or is_denied(own.get(user, ()), fleet)
    ]
    excess = [
        user
        for user, rules in wanted.items()
        if own.get(user, set()) - set(rules) and user not in lacking
    ]
    shut = [
        user
        for user in revoked
        if not is_denied(own.get(user, ()), fleet) and (is_by_pattern or own.get(user))
    ]
    lacking, excess, shut = (sorted(set(names) - skipped) for names in (lacking, excess, shut))
    changed = {
        user: [*wanted[user], *(rule for rule in present.get(user, ()) if rule not in own[user])]
        if user in own
        else wanted[user]
        for user in (*lacking, *excess)
    }
    after = with_denied(with_users(text, fleet, changed), fleet, shut)
    patterns = [line for line in needed.splitlines() if line.startswith("pattern ")]
    missing = [line for line in patterns if line not in text.splitlines()]
    if missing:
        lacking.insert(0, "")
        after = _with_patterns(after, fleet, missing)
    return AccessDifference(tuple(lacking), (*excess, *shut), after)


def _with_patterns(text: str, fleet: str, patterns: Sequence[str]) -> str:
    lines = text.splitlines()
    at = next(
        number
        for number, line in enumerate(lines)
        if line.startswith("pattern ") and f" {ROOT}/{fleet}/" in line
    )
    return "".join(f"{line}\n" for line in (*lines[:at], *patterns, *lines[at:]))


def remedy(config: AggregatorConfig, path: Path, text: str, *, is_shared: bool) -> str:
    """Return the command that writes a file of access rules again, in the same form."""
    form = " --shared" if is_shared else ""
    form += " --patterns" if has_patterns(text, config.fleet) else ""
    only = [f"topic read {ROOT}/{config.fleet}/+/up/update"]
    workers = [unqualified(user)[1] for user, rules in rules_by_user(text).items() if rules == only]
    form += "".join(f" --worker {name}" for name in workers)
    return (
        f"gridfed-aggregator broker access --file {path}{form} --config {config.file}, and reload "
        "the broker"
    )


def warning(config: AggregatorConfig, path: Path | None) -> str:
    """Return the difference of a file of access rules, with the remedy; empty without one.

    Also empty without a file on this machine, and before the fleet is set up.
    """
    if path is None or not path.exists() or not exists(config.database):
        return ""
    with open_store(config.database, read_only=True) as store:
        clients = store.devices.all()
    try:
        text = path.read_text("utf-8", errors="replace")
        is_shared = config.section("ca").shared or is_for_shared_broker(text, config.fleet)
        found = difference(text, config, clients, is_shared=is_shared)
    except (OSError, ValueError, Failure) as error:
        return f"{path}: the access rules cannot be compared: {error}"
    how = remedy(config, path, text, is_shared=is_shared)
    return f"{found.sentence(path)}; write them again: {how}" if found else ""


def access_warning(config: AggregatorConfig) -> str:
    """Return the missing rules of the configured access file; empty if no missing rule is known.

    A fleet with an authority of gridfed's and a broker with TLS is told where no file is named.
    """
    if config.section("ca").access_file is None:
        if config.section("ca").folder is None or not config.broker.url.startswith("mqtts:"):
            return ""
        return (
            "ca.access_file is not set: the broker's access rules are not compared with enrolments and "
            "runs; name the broker's acl_file, or write it again after each change"
        )
    if not config.section("ca").access_file.exists():
        return (
            f"ca.access_file: {config.section('ca').access_file} is not on this machine, so the broker's access "
            "rules are not compared with enrolments and runs"
        )
    return warning(config, config.section("ca").access_file)


def is_for_shared_broker(text: str, fleet: str) -> bool:
    return any(unqualified(user)[0] == fleet for user in rules_by_user(text))


@dataclass(slots=True)
class AccessRulesMonitor:
    """Monitor that keeps ``ca.access_file`` in step with enrolments, labels and runs."""

    # how the file differs, with the remedy; empty if it does not, or is not configured
    problem: str = ""
    _config: AggregatorConfig | None = None
    _marks: tuple[object, ...] = ()
    _due: float = field(default=float("-inf"))
    _is_reload_due: bool = False

    def follow(self, config: AggregatorConfig, registry: Registry, now: float) -> None:
        """Compare the file after a change of it, of the configuration or of a device; ``now`` is monotonic, s."""
        path = config.section("ca").access_file
        if path is None:
            self.problem = ""
            return
        marks = (registry.revision, mark_of(path))
        is_same = config is self._config and marks == self._marks and not self._is_reload_due
        if is_same or now < self._due:
            return
        self._due, self._config = now + PERIOD, config
        before = self.problem
        try:
            self.problem = self._correct(config, path, registry.clients())
        except (OSError, ValueError, Failure) as error:
            self.problem = f"{path}: {getattr(error, 'strerror', None) or error}"
        self._marks = (registry.revision, mark_of(path))
        if self.problem and self.problem != before:
            logger.warning("access rules differ %s", fields(why=self.problem))

    def _correct(
        self, config: AggregatorConfig, path: Path, clients: Sequence[EnrolledDevice]
    ) -> str:
        """Write the missing rules and reload the broker; return the remaining steps of the operator."""
        is_shared = config.section("ca").shared
        if not config.section("ca").reload:
            text = path.read_text("utf-8", errors="replace")
            found = difference(text, config, clients, is_shared=is_shared)
            if not found:
                return ""
            how = remedy(config, path, text, is_shared=is_shared)
            return f"{found.sentence(path)}; set ca.reload and the daemon writes them; now: {how}"
        made: list[AccessDifference] = []

        def change(text: str) -> str:
            revoked = [
                order.device for _, order in waiting(config.inbox) if order and order.do == "revoke"
            ]
            made.append(difference(text, config, clients, is_shared=is_shared, spared=revoked))
            return made[-1].text if made[-1] else text

        edit_access_file(path, change)
        (found,) = made
        if found:
            self._is_reload_due = True
            about = {"file": path, "granted": len(found.lacking), "withdrawn": len(found.excess)}
            logger.info("access rules written %s", fields(**about))
        if self._is_reload_due:
            reload_broker(config)
            self._is_reload_due = False
        return ""


class AccessUpkeep(ServerExtension):
    """Compares the file of access rules after each change, and writes it where it may."""

    def __init__(self, parts: ServerParts, config: AggregatorConfig) -> None:
        super().__init__(parts, config)
        self._monitor = AccessRulesMonitor()

    def on_tick(self, now: float) -> None:
        """Compare the file if anything has changed."""
        self._monitor.follow(self.config, self.parts.isolation.registry, now)

    @property
    def obstacle(self) -> str:
        """Difference of the rules, with the remedy; empty without one."""
        return self._monitor.problem

    def status(self) -> Mapping[str, Any]:
        """Return the difference of the rules."""
        return {"access_rules": self.obstacle} if self.obstacle else {}
