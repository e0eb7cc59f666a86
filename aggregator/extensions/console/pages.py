"""Collect the values of the console's pages from the database and the daemon's status."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from markupsafe import Markup

from aggregator.config import AggregatorConfig
from aggregator.extensions.console.activity import Activity, run_activity
from aggregator.extensions.console.budget_page import budget_values
from aggregator.extensions.console.charts import excluded_chart, loss_chart
from aggregator.extensions.console.device_rows import (
    UPDATES,
    HistoryEntry,
    device_history,
    device_rows,
)
from aggregator.extensions.console.fleet_summary import (
    Notice,
    ParticipationFacts,
    RunLine,
    happening,
    notices,
    reasons_for_absence,
    run_lines,
    still_notice,
)
from aggregator.extensions.console.key_page import key_values, root_notices, signed_by_root
from aggregator.extensions.console.live_status import LiveStatus
from aggregator.extensions.console.order_log import given_orders, queued_orders
from aggregator.extensions.console.overview import StoreOverview
from aggregator.extensions.console.overview_rows import DeviceFilter
from aggregator.extensions.console.refusal_guide import ADVICE
from aggregator.extensions.console.rendering import render
from aggregator.operations.commands import OPS
from aggregator.operations.status_snapshot import excluded, from_others
from aggregator.store.opener import open_store
from edge_sdk.app.clock import SystemClock
from edge_sdk.app.extensions import ExtensionEntry
from edge_sdk.errors import Reason
from edge_sdk.protocol.keys import kid_of

PER_PAGE = 50  # devices
SHOWN = 50  # rounds, entries and names in a table
LISTED = 400  # devices of one round
CHARTED = 100  # rounds in a chart and in the table beside it
DRAWN = 4  # runs with a picture on the first page
RECENT = 50  # closed rounds in which suspects are counted

Values = dict[str, Any]
Query = Mapping[str, str]


class NotFoundError(Exception):
    """A device, run, round or reason that does not exist."""


@dataclass(frozen=True)
class ConsolePages:
    """Values of every page."""

    config: AggregatorConfig
    live: LiveStatus  # status of the running daemon

    @cached_property
    def extensions(self) -> list[ExtensionEntry]:
        """Configured extensions with pages or parts of pages."""
        return [
            entry
            for entry in self.config.index.values()
            if entry.row.keys() & {"pages", "parts"}
            and ("configured" not in entry.row or entry.is_configured(self.config.tables))
        ]

    @property
    def acts(self) -> dict[str, Sequence[str]]:
        """Acts of the orders that extensions execute, by the order's name."""
        return {x: y for entry in self.extensions for x, y in entry.row.get("acts", {}).items()}

    @property
    def packages(self) -> tuple[str, ...]:
        return tuple(entry.package for entry in self.extensions)

    def open(self) -> StoreOverview:
        return StoreOverview.open(self.config.database)

    def fleet(self, query: Query) -> Values:
        """Return the fleet's activity, the notices and the newest rounds."""
        document, now = self.live.document(), SystemClock().wall()
        with self.open() as store:
            runs, states = self._runs(store, document), store.states()
            rounds = store.rounds(runs[0].number, 8) if runs else []
            activities = self._activities(store, runs, now)
            still = [
                one for run in runs for one in still_notice(run, *store.standstill(run.number))
            ]
        parts, needed = self._parts("fleet", query)
        needed += root_notices(signed_by_root(self.config), now)
        return {
            "sentence": happening(document, runs),
            "notices": [*notices(document, states), *still, *needed],
            "runs": runs,
            "states": states,
            "online": {k: v for k, v in document.get("devices", {}).items() if k != "enrolled"},
            "rounds": rounds,
            "run": runs[0].number if runs else 0,
            "activities": activities,
            "parts": parts,
        }

    def _activities(
        self, store: StoreOverview, runs: Sequence[RunLine], now: int
    ) -> list[Activity]:
        found = (
            run_activity(store, run.number, run.name, store.eligible(self._cohort(run.name)), now)
            for run in runs[:DRAWN]
        )
        return [one for one in found if one is not None]

    def runs(self, _query: Query) -> Values:
        """Return the runs of the configuration, the earlier ones, and the open rounds."""
        document = self.live.document()
        with self.open() as store:
            runs = self._runs(store, document)
            found = [(run, store.rounds(run.number, 12)) for run in runs]
            earlier = sorted(set(store.runs.numbers()) - {run.number for run in runs})
        return {"found": found, "earlier": earlier[::-1], "payload": document.get("payload")}

    def run(self, query: Query) -> Values:
        """Return the closed rounds of one run, and who has answered the open one."""
        number = _number(query, "run")
        document = self.live.document()
        with self.open() as store:
            if number not in store.runs.numbers():
                raise NotFoundError(f"There is no run {number}.")
            rounds = store.rounds(number, CHARTED)
            current = [run for run in self._runs(store, document) if run.number == number]
            opened = current[0].round if current else 0
            is_open = bool(current) and (not rounds or opened > rounds[0].round)
            answered = store.answered(number, opened) if is_open else []
            tasks = [one.device for one in store.tasks.of_run(number)] if is_open else []
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
        page, document = max(_number(query, "page", 1), 1), self.live.document()
        with self.open() as store:
            count = store.count(wanted)
            found = store.devices(wanted, PER_PAGE, (page - 1) * PER_PAGE)
            labels, runs = store.label_names(), self._runs(store, document)
            contacts = document.get("contacts", {})
            rows = device_rows(store, found, self.config, runs, contacts)
        return {
            "wanted": wanted,
            "page": page,
            "last": max(1, -(-count // PER_PAGE)),
            "count": count,
            "rows": rows,
            "labels": labels,
            "limit": self.config.admission.max_updates,
            "updates": UPDATES,
        }

    def device(self, query: Query) -> Values:
        """Return one device: why it takes no part, timeline, commands, keys."""
        name = query.get("id", "")
        document = self.live.document()
        with self.open() as store:
            found = store.device(name)
            if found is None:
                raise NotFoundError(f"No device {name!r} is enrolled.")
            timeline = store.timeline(name, SHOWN)
            acts = store.acts_about(name, SHOWN)
            commands = store.commands(name, SHOWN)
            runs = self._runs(store, document)
            contact = document.get("contacts", {}).get(name, {})
            (row,) = device_rows(store, [found], self.config, runs, {name: contact})
            declined = store.declined([name]).get(name, {})
        facts = ParticipationFacts(
            found,
            contact,
            bool(document),
            [run.phase for run in runs if run.phase],
            [run.cohort for run in self.config.runs if run.cohort or len(self.config.runs) > 1],
            self.config.admission.max_updates,
            timeline,
            {} if row.model else declined,
        )
        return {
            "title": found.id,
            "device": found,
            "row": row,
            "declined": declined,
            "absence": reasons_for_absence(facts),
            "history": device_history(timeline, acts, self._events(name), SHOWN),
            "shown": SHOWN,
            "commands": [(one, _outcome(one.code)) for one in commands],
            "kids": [kid_of(bytes.fromhex(key)).hex() for key in found.keys],
            "limit": self.config.admission.max_updates,
            "ops": OPS,
            "parts": self._parts("device", query)[0],
        }

    def budgets(self, query: Query) -> Values:
        """Return the releases of the devices, largest first, against the bound."""
        page = max(_number(query, "page", 1), 1)
        with self.open() as store:
            runs = [run.number for run in self._runs(store, {})]
            return budget_values(store, self.config, runs, page, PER_PAGE)

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
        """Return the devices left out by the rule, and those in quarantine."""
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

    def keys(self, _query: Query) -> Values:
        return key_values(self.config, self.live.document())

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

    def brought(self) -> dict[str, Callable[[Query], Values]]:
        """Return the pages of extensions by name; each is imported when it is opened."""
        loaders = (entry.loaders("pages") for entry in self.extensions)
        return {x: partial(self._brought, load) for one in loaders for x, load in one.items()}

    def _brought(self, load: Callable[[], Any], query: Query) -> Values:
        return {**load()(self.config, query), "is_daemon_up": bool(self.live.document())}

    def _needed(self) -> list[ExtensionEntry]:
        with open_store(self.config.database, read_only=True) as store:
            announced = store.announcements.get
            return [one for one in self.extensions if self.config.needs(one, announced)]

    def _events(self, device: str) -> list[HistoryEntry]:
        """Return the timeline entries of extensions about a device."""
        loaded = ((one.name, load) for one in self._needed() if (load := one.load("history")))
        return [
            HistoryEntry(time, name, *more)
            for name, load in loaded
            for time, *more in load(self.config, device)
        ]

    def _parts(self, page: str, query: Query) -> tuple[list[Markup], list[Notice]]:
        """Return the parts that extensions add to a page, and their notices."""
        parts, found = [], []
        for entry in self._needed():
            if load := entry.loaders("parts").get(page):
                part = load()(self.config, query)
                found += [Notice(*one) for one in part.get("notices", ())]
                parts.append(render(self.packages, f"{page}_{entry.name}", {"part": part}))
        return parts, found

    def fingerprint(self) -> str:
        """Return a text that differs after any change that a page shows."""
        document = self.live.document()
        names = ("ready", "devices", "run", "runs", "halted", "dead_letters", "alarms", "flooding")
        with self.open() as store:
            stored = store.fingerprint()
        marks = [mark(self.config) for one in self._needed() if (mark := one.load("mark"))]
        return f"{stored} {[document.get(name) for name in names]} {marks}"

    def _cohort(self, name: str) -> Mapping[str, str]:
        """Return the labels that the devices of a run must have."""
        return next((run.cohort for run in self.config.runs if run.name == name), {})

    def _runs(self, store: StoreOverview, document: Mapping[str, Any]) -> list[RunLine]:
        return run_lines(self.config, store, document)


def _outcome(code: int | None) -> str:
    return "waits for the device" if code is None else "done" if code == 0 else Reason(code).name


def _number(query: Query, name: str, default: int | None = None) -> int:
    text = query.get(name, "")
    if not text and default is not None:
        return default
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise NotFoundError(f"{name}: expected a whole number, got {text!r}.")
    return int(text)
