"""Collect the values of the console's pages from the database and the daemon's status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aggregator.config import AggregatorConfig
from aggregator.console.charts import excluded_chart, loss_chart, score_days
from aggregator.console.fleet_summary import (
    ParticipationFacts,
    RunLine,
    happening,
    notices,
    planned_start,
    reasons_for_absence,
    rule_name,
)
from aggregator.console.forecast_page import device_forecast
from aggregator.console.live_status import LiveStatus
from aggregator.console.order_log import given_orders, queued_orders
from aggregator.console.rollout_page import fleet_rollout, rollout_values
from aggregator.operations.control_queue import OPS
from aggregator.operations.operator_alerts import offline
from aggregator.operations.refusal_guide import ADVICE
from aggregator.operations.status_snapshot import excluded, from_others
from aggregator.rules import BEFORE, RULES
from aggregator.store.opener import open_overview
from aggregator.store.overview import DeviceFilter, StoreOverview
from edge_sdk.wire.errors import Reason
from edge_sdk.wire.keys import KeyFileError, kid_of
from edge_sdk.wire.root_keys import read_root

PER_PAGE = 50  # devices
SHOWN = 50  # rounds, entries and names in a table
LISTED = 400  # devices of one round
CHARTED = 100  # rounds in a chart and in the table beside it
RECENT = 50  # closed rounds in which suspects are counted

Values = dict[str, Any]
Query = Mapping[str, str]


class NotFoundError(Exception):
    """A device, run, round or reason that does not exist."""


@dataclass(frozen=True, slots=True)
class ConsolePages:
    """Values of every page.

    Attributes:
        config: Configuration of the aggregator.
        live: Status of the running daemon.
    """

    config: AggregatorConfig
    live: LiveStatus

    def open(self) -> StoreOverview:
        """Open the database for reading."""
        return open_overview(self.config.database)

    def fleet(self, _query: Query) -> Values:
        """Return what the fleet does, what needs a person, and the newest rounds."""
        document = self.live.document()
        with self.open() as store:
            runs, states = self._runs(store, document), store.states()
            rounds = store.rounds(runs[0].number, 8) if runs else []
        needed, rollout = fleet_rollout(self.config)
        return {
            "sentence": happening(document, runs),
            "notices": [*notices(document, states), *needed],
            "rollout": rollout,
            "runs": runs,
            "states": states,
            "online": {k: v for k, v in document.get("devices", {}).items() if k != "enrolled"},
            "rounds": rounds,
            "run": runs[0].number if runs else 0,
        }

    def runs(self, _query: Query) -> Values:
        """Return the runs of the configuration, the earlier ones, and the open rounds."""
        document = self.live.document()
        with self.open() as store:
            runs = self._runs(store, document)
            found = [(run, store.rounds(run.number, 12)) for run in runs]
            earlier = sorted(set(store.run_numbers()) - {run.number for run in runs})
        return {
            "found": found,
            "earlier": earlier[::-1],
            "payload": document.get("payload"),
        }

    def run(self, query: Query) -> Values:
        """Return the closed rounds of one run, and who has answered the open one."""
        number = _number(query, "run")
        document = self.live.document()
        with self.open() as store:
            if number not in store.run_numbers():
                raise NotFoundError(f"There is no run {number}.")
            rounds = store.rounds(number, CHARTED)
            current = [run for run in self._runs(store, document) if run.number == number]
            opened = current[0].round if current else 0
            is_open = bool(current) and (not rounds or opened > rounds[0].round)
            answered = store.answered(number, opened) if is_open else []
            tasks = [one.device for one in store.open_tasks(number)] if is_open else []
            eligible = store.eligible(self._cohort(current[0].name)) if current else frozenset()
        contacts = document.get("contacts", {})
        online = [one for one, at in contacts.items() if at["state"] in {"online", "sleeping"}]
        awaited = sorted((set(tasks or online) & eligible) - set(answered))
        return {
            "title": f"Run {current[0].name or number}" if current else f"Run {number}",
            "run": number,
            "line": current[0] if current else None,
            "opened": opened if is_open else 0,
            "answered": answered,
            "awaited": awaited,
            "rounds": rounds,
            "chart": loss_chart(rounds),
            "shown": SHOWN,
            "charted": CHARTED,
        }

    def scores(self, _query: Query) -> Values:
        """Return the estimated histograms of scores of the newest days."""
        return {"days": score_days(self.config), "collects": self.config.scores.collect}

    def round(self, query: Query) -> Values:
        """Return one closed round: devices, norms, weights, and the rule's verdict."""
        run, number = _number(query, "run"), _number(query, "round")
        with self.open() as store:
            version = store.version(run, number)
        if version is None:
            raise NotFoundError(f"Round {number} of run {run} is not closed, or was deleted.")
        report = version.report
        dropped, weights = report.get("dropped", {}), report.get("weights", {})
        norms = report.get("norms", {})
        names = sorted(
            {*report.get("cohort", ()), *dropped}, key=lambda one: (one not in dropped, one)
        )
        rows = [(one, norms.get(one), weights.get(one), dropped.get(one, "")) for one in names]
        known = {"cohort", "norms", "weights", "dropped", "credit", "clusters", "stop"}
        facts = {
            k: v for k, v in report.items() if k not in known and not isinstance(v, dict | list)
        }
        return {
            "title": f"Round {number}",
            "run": run,
            "version": version,
            "rows": rows[:LISTED],
            "count": len(rows),
            "facts": facts,
            "excluded": len(dropped),
        }

    def devices(self, query: Query) -> Values:
        """Return one page of the devices that a search selects."""
        wanted = DeviceFilter(query.get("q", ""), query.get("label", ""), query.get("state", ""))
        page = max(_number(query, "page", 1), 1)
        with self.open() as store:
            count = store.count(wanted)
            found = store.devices(wanted, PER_PAGE, (page - 1) * PER_PAGE)
            labels = store.label_names()
        return {
            "wanted": wanted,
            "page": page,
            "last": max(1, -(-count // PER_PAGE)),
            "count": count,
            "devices": found,
            "labels": labels,
            "contacts": self.live.document().get("contacts", {}),
        }

    def device(self, query: Query) -> Values:
        """Return one device: why it takes no part, its timeline, commands and keys."""
        name = query.get("id", "")
        document = self.live.document()
        with self.open() as store:
            found = store.device(name)
            if found is None:
                raise NotFoundError(f"No device {name!r} is enrolled.")
            timeline = store.timeline(name, SHOWN)
            commands = store.commands(name, SHOWN)
            runs = self._runs(store, document)
        contact = document.get("contacts", {}).get(name, {})
        facts = ParticipationFacts(
            found,
            contact,
            bool(document),
            [run.phase for run in runs if run.phase],
            [run.cohort for run in self.config.runs if run.cohort or len(self.config.runs) > 1],
            self.config.admission.max_updates,
            timeline,
        )
        return {
            "title": found.id,
            "device": found,
            "contact": contact,
            "absence": reasons_for_absence(facts),
            "timeline": [(one, Reason(one.code)) for one in timeline],
            "commands": [(one, _outcome(one.code)) for one in commands],
            "kids": [kid_of(bytes.fromhex(key)).hex() for key in found.keys],
            "limit": self.config.admission.max_updates,
            "ops": OPS,
            "forecast": device_forecast(self.config, found.id),
        }

    def budgets(self, query: Query) -> Values:
        """Return the releases of the devices, largest first, against the bound."""
        page = max(_number(query, "page", 1), 1)
        with self.open() as store:
            count = store.count(DeviceFilter())
            offset = (page - 1) * PER_PAGE
            found = store.devices(DeviceFilter(), PER_PAGE, offset, by_spent=True)
        limit = self.config.admission.max_updates
        rows = [(one, one.spent / limit if limit else None) for one in found]
        return {"rows": rows, "limit": limit, "page": page, "last": max(1, -(-count // PER_PAGE))}

    def refusals(self, query: Query) -> Values:
        """Return every reason with its counts, meaning and remedy; and the devices of one."""
        name = query.get("reason", "")
        if name and name not in Reason.__members__:
            raise NotFoundError(f"There is no reason {name!r}.")
        with self.open() as store:
            stored = {code: (updates, devices) for code, updates, devices in store.refusals()}
            devices = store.refused_devices(Reason[name], SHOWN) if name else []
        document = self.live.document()
        counted = document.get("refused", {})
        rows = [
            (reason.name, *stored.get(reason, (0, 0)), counted.get(reason.name, 0), *advice)
            for reason, advice in ADVICE.items()
        ]
        rows.sort(key=lambda row: (-row[1], -row[3], row[0]))
        return {
            "present": [row for row in rows if row[1] or row[3]],
            "absent": [row for row in rows if not row[1] and not row[3]],
            "chosen": name,
            "advice": ADVICE.get(Reason[name]) if name else None,
            "devices": devices,
            "letters": document.get("dead_letters", 0),
            "flooding": document.get("flooding", {}),
        }

    def suspects(self, query: Query) -> Values:
        """Return the devices that the rule left out, and those in quarantine."""
        with self.open() as store:
            runs = self._runs(store, {})
            number = _number(query, "run", runs[0].number if runs else 0)
            rows = store.suspects(number, RECENT, SHOWN)
            rounds = store.rounds(number, RECENT)
            shut = store.devices(DeviceFilter(state="quarantined"), SHOWN)
        document = self.live.document()
        credit = document.get("credit") or {}
        without = set(excluded(credit))
        weights = sorted(from_others(credit).items(), key=lambda one: (one[1], one[0]))
        return {
            "run": number,
            "rows": rows,
            "shut": shut,
            "chart": excluded_chart(rounds),
            "rounds": rounds,
            "recent": RECENT,
            "times": {one.round: one.time for one in rounds},
            "credit": [(name, weight, name in without) for name, weight in weights[:SHOWN]],
            "signs": document.get("refused", {}).get("OUTLIVED", 0),
        }

    def replay(self, query: Query) -> Values:
        """Return the form of an incident replay, with the rounds that can be replayed."""
        with self.open() as store:
            runs = self._runs(store, {})
            number = _number(query, "run", runs[0].number if runs else 0)
            newest = store.rounds(number, 1)
            oldest = max(store.oldest_whole_round(number), 1)
        last = newest[0].round if newest else 0
        suggested = query.get("rounds") or (f"{max(oldest, last - 4)}:{last}" if last else "")
        form = {"rounds": suggested, "run": str(number), "without": query.get("without", "")}
        return {
            "form": {"rule": "", "f": "", "min_updates": "", **form},
            "rules": [*RULES, *(f"{before}+krum" for before in BEFORE)],
            "oldest": oldest,
            "last": last,
            "result": None,
            "failure": "",
            "chart": "",
        }

    def rollout(self, _query: Query) -> Values:
        """Return the newest rollout."""
        return rollout_values(self.config, is_daemon_up=bool(self.live.document()))

    def keys(self, _query: Query) -> Values:
        """Return the keys in use and the files that expire."""
        try:
            root = read_root(self.config.root_public).name
        except KeyFileError as error:
            root = str(error)
        document = self.live.document()
        return {
            "root": root,
            "paths": {"root": self.config.root_public, "signing": self.config.signing_key},
            "files": document.get("certificates") or offline(self.config),
            "is_daemon_up": bool(document),
            "configuration": document.get("configuration", ""),
            "checks": document.get("checks", {}),
        }

    def orders(self, _query: Query) -> Values:
        """Return the orders that wait, those given in the console, and open commands."""
        with self.open() as store:
            commands = store.commands(most=SHOWN)
        log = self.config.state / "console" / "orders.jsonl"
        return {
            "queued": queued_orders(self.config),
            "given": given_orders(log),
            "commands": commands,
            "is_daemon_up": bool(self.live.document()),
        }

    def fingerprint(self) -> str:
        """Return a text that differs after any change that a page shows."""
        document = self.live.document()
        names = ("ready", "devices", "run", "runs", "halted", "dead_letters", "alarms", "flooding")
        with self.open() as store:
            stored = store.fingerprint()
        return f"{stored} {[document.get(name) for name in names]}"

    def _cohort(self, name: str) -> Mapping[str, str]:
        """Return the labels that the devices of a run must have."""
        return next((run.cohort for run in self.config.runs if run.name == name), {})

    def _runs(self, store: StoreOverview, document: Mapping[str, Any]) -> list[RunLine]:
        """Return the configured runs that have begun."""
        live = {one.get("run"): one for one in document.get("runs") or [document.get("run", {})]}
        found = []
        for view in self.config.views():
            begun = store.run(view.run.name)
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
                )
            )
        return found


def _outcome(code: int | None) -> str:
    return "waits for the device" if code is None else "done" if code == 0 else Reason(code).name


def _number(query: Query, name: str, default: int | None = None) -> int:
    """Return a whole number of a query.

    Raises:
        NotFoundError: It is missing or no whole number.
    """
    text = query.get(name, "")
    if not text and default is not None:
        return default
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise NotFoundError(f"{name}: expected a whole number, got {text!r}.")
    return int(text)
