"""A trial: every way to learn, without and with every attack, and what the honest came to.

Each run is a new aggregator and new devices on one broker; who lies in the attacked run takes part
honestly in the other one, and is judged in neither.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from firmware_sim.attacks.attack_plan import AttackPlan
from firmware_sim.commands.fleet import FleetRun
from firmware_sim.fleet.federation import TooSlow, require_broker, start_broker
from firmware_sim.fleet.processes import ProcessGroup
from firmware_sim.fleet.run_files import assigned
from firmware_sim.reports import interval_scores
from firmware_sim.reports.credit_report import CreditReport
from firmware_sim.reports.forecast_errors import Errors
from firmware_sim.reports.progress_display import Display
from firmware_sim.samples import SampleSet
from firmware_sim.scenario import Learning, Scenario

HOLDS = 0.15
"""An RMSE that rose by at most so much is said to hold."""

DOUBLES = 1.0
"""One that rose by at least so much is said to double."""

TENFOLD = 9.0
"""One that rose beyond is said to diverge, and written as a factor."""

WORST_FIRST = ("diverges", "stalled", "doubles", "suffers", "holds")

STALL = 45.0
"""Seconds that the model of an attacked run may stand still before it is judged where it stands."""


@dataclass(frozen=True, slots=True)
class TrialRow:
    """What one run came to.

    Attributes:
        learning: How the fleet learned.
        assault: What it stood; None for the run without.
        errors: Of the devices that lie in no run.
        refused: What the aggregator refused, by reason.
        rounds: How often the model moved.
        clean: The RMSE of the same way to learn without an attack; None in that row itself.
        devices: How many took part.
        trust: Who trusted whom, where the method weighs models for one another.
        liars: Ids of those who lied.
    """

    learning: Learning
    assault: AttackPlan | None
    errors: Errors
    refused: dict[str, int]
    rounds: int
    clean: float | None = None
    devices: int = 0
    trust: CreditReport | None = None
    liars: frozenset[str] = frozenset()

    @property
    def rise(self) -> float | None:
        """By what share the RMSE rose over the run without an attack."""
        return None if self.clean is None else self.errors.rmse / self.clean - 1.0

    @property
    def is_stalled(self) -> bool:
        """Whether the model did not move as often as it should."""
        return self.rounds < self.learning.rounds

    @property
    def says(self) -> str:
        """One word for the rise: holds, suffers, doubles, diverges; or stalled, if it is none.

        >>> from firmware_sim.reports.forecast_errors import Error
        >>> def row(rmse):
        ...     off = Errors({"a": Error(1.0, rmse, 9)})
        ...     return TrialRow(Learning(), AttackPlan("alie"), off, {}, 20, clean=2.0)
        >>> [row(rmse).says for rmse in (2.3, 2.4, 4.0, float("inf"))]
        ['holds', 'suffers', 'doubles', 'diverges']
        """
        if self.rise is None:
            return ""
        if not self.rise < TENFOLD:
            return "diverges"
        if self.is_stalled:
            return "stalled"
        if self.rise <= HOLDS:
            return "holds"
        return "doubles" if self.rise >= DOUBLES else "suffers"

    def as_json(self) -> dict[str, Any]:
        """Return plain values; a number that is none is None."""
        return {
            "method": self.learning.method,
            "rule": self.learning.rule_name,
            "attack": self.assault.attack if self.assault else None,
            "mae": _number(self.errors.mae),
            "rmse": _number(self.errors.rmse),
            "rise": None if self.rise is None else _number(self.rise),
            "says": self.says,
            "windows": self.errors.windows,
            "rounds": self.rounds,
            "refused": self.refused,
            "liars": sorted(self.liars),
            "devices": {
                name: {"mae": _number(one.mae), "rmse": _number(one.rmse)}
                for name, one in self.errors.each.items()
            },
            "intervals": {name: asdict(one) for name, one in self.errors.held.items()},
            "credit": self.trust.credit if self.trust else {},
            "outcast_since": {
                name: self.trust.since(name) for name in sorted(self.liars) if self.trust
            },
        }

    def story(self, unit: str) -> str:
        """Return what else there is to see: whom the method trusted, and how intervals fared.

        Empty where the method weighs nobody and the model says no interval.
        """
        against = f"under {self.assault.attack}" if self.assault else "without an attack"
        head = f"{self.learning.method}, {against}"
        parts = []
        if self.trust is not None:
            parts.append(f"{head}: {self.trust.marked(self.liars)}")
        if self.errors.held:
            fared = interval_scores.table(self.errors.held, unit)
            parts.append(f"{head}: readings outside of the intervals that were served\n{fared}")
            parts.append(self.errors.glimpses[0].text(unit))
        return "\n\n".join(parts)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass
class Trial:
    """All runs of one scenario, in one folder.

    Attributes:
        scenario: With its ways to learn and its attacks.
        samples: Whose readings.
        out: Everything is written below it.
        shown: Where progress goes.
        broker: Address of a running broker, or empty to start one of ``kind``.
        limit: Seconds that one run may take.
        seed: Of what the simulator draws.
    """

    scenario: Scenario
    samples: SampleSet
    out: Path
    shown: Display
    broker: str = ""
    kind: str = "auto"
    limit: float = 600.0
    seed: int = 0
    rows: list[TrialRow] = field(default_factory=list)

    def run(self) -> list[TrialRow]:
        """Run every way to learn, first without an attack, then with each.

        Raises:
            NoBroker: Nobody answers at the broker's address.
            Died: A program ended in failure; the aggregator refuses what a rule cannot stand.
        """
        with ProcessGroup(self.out / "logs") as family:
            given = require_broker(self.broker) if self.broker else ""
            url = given or start_broker(family, self.out / "broker", self.kind)
            for number, learning in enumerate((self.scenario.learning, *self.scenario.against)):
                clean = self._one(url, f"{number}-{learning.method}", learning, None)
                self.rows.append(clean)
                for attack, assault in enumerate(self.scenario.assaults):
                    where = f"{number}-{learning.method}-{attack}-{assault.attack}"
                    row = self._one(url, where, learning, assault)
                    self.rows.append(replace(row, clean=clean.errors.rmse))
        return self.rows

    @property
    def judged(self) -> tuple[str, ...]:
        """Ids of the devices that lie under no attack of this trial."""
        ids = [name for name, _ in assigned(self.samples.samples, self.scenario.devices)]
        liars = {name for one in self.scenario.assaults for name in one.malicious(ids)}
        return tuple(name for name in ids if name not in liars)

    def _one(
        self, url: str, where: str, learning: Learning, assault: AttackPlan | None
    ) -> TrialRow:
        """Do one run; one that does not come to its end in time is judged where it stands."""
        heard = replace(learning, quorum=learning.awaits(heard_of(self.scenario, assault)))
        run = FleetRun(
            replace(self.scenario, learning=heard),
            self.samples,
            self.out / where,
            self.shown,
            is_in_process=True,
            name=f"{learning.method} {learning.rule_name}, {assault.attack if assault else 'none'}",
            broker=url,
            limit=self.limit,
            seed=self.seed,
            fleet=f"trial-{len(self.rows)}",
            stall=STALL if assault else math.inf,
            assault=assault,
            judged=self.judged,
        )
        rounds = learning.rounds
        try:
            run.run()
        except TooSlow as slow:
            if assault is None:
                raise
            self.shown.note(f"{where}: {slow}")
            rounds = run.moved
        if run.errors is None:
            raise TooSlow(f"{where}: nobody could be judged")
        devices = self.scenario.devices
        ids = [name for name, _ in assigned(self.samples.samples, devices)]
        return TrialRow(
            learning,
            assault,
            run.errors,
            run.refused,
            rounds,
            devices=devices,
            trust=run.trust,
            liars=assault.malicious(ids) if assault else frozenset(),
        )


def heard_of(chosen: Scenario, assault: AttackPlan | None) -> int:
    """Return how many answers a round can hope for: some attacks are refused, or never arrive."""
    if assault is None or not assault.is_silenced:
        return chosen.devices
    return chosen.devices - assault.count(chosen.devices)


def table(rows: Sequence[TrialRow], unit: str) -> str:
    """Lay the rows out as text, and say in one line each how every way to learn stood."""
    names = [(row.learning.method, row.learning.rule_name) for row in rows]
    wide = [max(map(len, column)) + 2 for column in zip(*names, ("method", "rule"), strict=True)]
    head = f"{'method':{wide[0]}}{'rule':{wide[1]}}{'attack':16}"
    lines = [f"{head}{'MAE':>10}{'RMSE':>10}{'rise':>12}{'refused':>9}  "]
    for (method, rule), row in zip(names, rows, strict=True):
        attack = row.assault.attack if row.assault else "none"
        lines.append(
            f"{method:{wide[0]}}{rule:{wide[1]}}{attack:16}{row.errors.mae:10.4g}"
            f"{row.errors.rmse:10.4g}{_rise(row.rise):>12}{sum(row.refused.values()):9}  {row.says}"
        )
    judged = len(rows[0].errors.each) if rows else 0
    lines += [f"means over the {judged} devices that never lie, {unit}", ""]
    told = "\n".join([*map(str.rstrip, lines), *verdicts(rows)])
    stories = [row.story(unit) for row in rows if row.assault is not None or len(rows) == 1]
    return "\n\n".join([told, *filter(None, stories)])


def _rise(share: float | None) -> str:
    """Write a rise for a person.

    >>> _rise(0.129), _rise(-0.01), _rise(1.7e39), _rise(None)
    ('+12.9 %', '-1.0 %', 'x 1.7e+39', '')
    """
    if share is None:
        return ""
    return f"{share:+.1%}".replace("%", " %") if share < TENFOLD else f"x {1 + share:.3g}"


def verdicts(rows: Sequence[TrialRow]) -> list[str]:
    """Say for every way to learn what became of it under the attacks, the worst first.

    >>> from firmware_sim.reports.forecast_errors import Error
    >>> def row(attack, rmse):
    ...     off = Errors({"a": Error(1.0, rmse, 9)})
    ...     return TrialRow(Learning(), AttackPlan(attack, 0.3), off, {}, 20, clean=2.0, devices=8)
    >>> verdicts([row("alie", 2.1), row("flipping", 4.5), row("ipm", 1.9)])
    ['fedavg with mean: doubles under 25 % flipping; holds under 25 % alie, ipm']
    """
    said: dict[tuple[str, str], dict[tuple[str, str], list[str]]] = {}
    for row in rows:
        if row.assault is not None:
            share = f"{row.assault.share(row.devices):.0%}".replace("%", " %")
            words = said.setdefault((row.learning.method, row.learning.rule_name), {})
            words.setdefault((row.says, share), []).append(row.assault.attack)
    return [f"{method} with {rule}: {_told(words)}" for (method, rule), words in said.items()]


def _told(words: Mapping[tuple[str, str], Sequence[str]]) -> str:
    parts = sorted(words.items(), key=lambda part: WORST_FIRST.index(part[0][0]))
    return "; ".join(f"{says} under {share} {', '.join(names)}" for (says, share), names in parts)
