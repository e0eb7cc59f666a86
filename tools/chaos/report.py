"""Report of a chaos test, as a page and as JSON."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from aggregator.extensions.audit.recompute import Audit
from edge_sdk.errors import Reason
from tools.chaos.delivery_audit import DeliveryVerdict


@dataclass
class Event:
    """One injected fault."""

    name: str
    at: float  # seconds since the start of the test
    met: int  # number of targets, of ``what``
    what: str
    version: int
    # seconds until the model moved again; None if another fault came first
    recovered: float | None = None


@dataclass
class Outcome:
    """Result of a whole test."""

    devices: int
    seed: int
    storm: float
    events: list[Event] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    alone: dict[str, int] = field(default_factory=dict)
    calm: float = 0.0
    version: int = 0
    audit: Audit = field(default_factory=Audit)
    verdict: DeliveryVerdict = field(default_factory=DeliveryVerdict)
    broken: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Return True if the history check, the audit and every database have no finding."""
        return self.audit.is_sound and self.verdict.is_sound and not self.broken

    def data(self) -> dict[str, Any]:
        return {**asdict(self), "sound": self.is_sound}

    def _span(self) -> str:
        calm = f"{self.calm:.0f} s until all receipts arrived"
        return f"{self.devices} devices, {self.storm:.0f} s of storm, {calm}; seed {self.seed}."

    def page(self) -> str:
        verdict = self.verdict
        refused = ", ".join(f"`{Reason(code).name}` {n}" for code, n in verdict.refused.items())
        lines = [
            self._span(),
            "",
            "| fault | times | met | until the model moved again, s: median, longest |",
            "|---|---|---|---|",
            *_faults(self.events),
            "",
            "| what the links saw and the journal has | |",
            "|---|---|",
            f"| updates sent | {verdict.sent} |",
            f"| sent again | {verdict.repeats} |",
            f"| receipted as counting | {verdict.receipted} |",
            f"| receipted as not counting | {refused or 'none'} |",
            f"| without any receipt | {verdict.unsettled} |",
            f"| in the journal | {verdict.applied} |",
            f"| of them compared bit for bit with what was sent | {verdict.applied - verdict.unproved} |",
            f"| rounds recomputed, of them moved | {self.audit.rounds}, {self.audit.moved} |",
            "",
            *(f"- {note}" for note in self.notes),
            *(f"- ended by itself, and was started again, {n} times: {w}"
              for w, n in self.alone.items()),
            "",
            "**The history check passes.**" if self.is_sound else "**The history check fails.**",
            *(f"- {f}" for f in (*self.verdict.faults, *self.audit.faults, *self.broken)),
        ]  # fmt: skip
        return "\n".join(lines).rstrip() + "\n"


def _faults(events: Sequence[Event]) -> list[str]:
    by_name: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_name[event.name].append(event)
    rows = []
    for name, met in sorted(by_name.items(), key=lambda pair: -len(pair[1])):
        what = Counter[str]()
        for event in met:
            what[event.what] += event.met
        total = ", ".join(f"{count} {kind}" for kind, count in sorted(what.items()))
        took = [event.recovered for event in met if event.recovered is not None]
        times = f"{median(took):.1f}, {max(took):.1f}" if took else "-"
        rows.append(f"| {name} | {len(met)} | {total} | {times} |")
    return rows
