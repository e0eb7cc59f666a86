"""A trial: every run without and with every attack, and the errors of the honest devices.

Each run is a new aggregator and new devices on one broker; a device that is Byzantine in the
attacked run takes part honestly in the other one, and is evaluated in neither.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firmware_sim.attacks.attack_plan import AttackPlan
from firmware_sim.commands.fleet_run import FleetRun
from firmware_sim.fleet.federation import TooSlow, require_broker, start_broker
from firmware_sim.fleet.processes import ProcessGroup
from firmware_sim.fleet.run_files import assigned
from firmware_sim.peers.peer_run import PeerRun
from firmware_sim.reports import forecast_errors
from firmware_sim.reports.credit_report import CreditReport
from firmware_sim.reports.forecast_errors import Errors
from firmware_sim.reports.progress_display import Display
from firmware_sim.samples import SampleSet
from firmware_sim.scenario import RunSettings, Scenario

if TYPE_CHECKING:
    from firmware_sim.direct.peer_run import DirectPeerRun
    from firmware_sim.direct.run import DirectRun

HOLDS = 0.15  # largest rise of the RMSE that is reported as ``holds``
DOUBLES = 1.0  # least rise that is reported as ``doubles``
TENFOLD = 9.0  # rise beyond which a run is reported as ``diverges``, and written as a factor
UNTRAINED = "nothing was learned"
"""Outcome of a run whose honest devices, with or without the attack, still forecast like the initial parameters."""

WORST_FIRST = ("diverges", UNTRAINED, "stalled", "doubles", "suffers", "holds")

STALL = 45.0  # seconds without a moved model after which an attacked run is evaluated as it is


@dataclass(frozen=True, slots=True)
class TrialRow:
    """Result of one run."""

    run: RunSettings
    attack_plan: AttackPlan | None  # attack on the run; None for the run without
    errors: Errors  # errors of the devices that are Byzantine in no run
    refused: dict[str, int]  # number of refusals by the aggregator, by reason
    rounds: int  # number of times the model moved
    clean: float | None = None  # RMSE of the same run without an attack; None in that row itself
    devices: int = 0
    # credit report, where the method weighs models for one another
    credit: CreditReport | None = None
    byzantine: frozenset[str] = frozenset()  # ids of the Byzantine devices
    # payload bytes that a device sent per round, on average; 0 if the run did not end
    sent: int = 0
    received: int = 0  # the same of what it received
    is_clean_untrained: bool = False  # true if nothing was learned in the run without an attack
    # disagreement of the models of honest devices after each exchange; empty with a server
    disagreements: tuple[float, ...] = ()

    @property
    def rise(self) -> float | None:
        """Return the relative rise of the RMSE over the run without an attack."""
        return None if self.clean is None else self.errors.rmse / self.clean - 1.0

    @property
    def is_stalled(self) -> bool:
        """Return True if the model moved less often than configured."""
        return self.rounds < self.run.rounds

    @property
    def outcome(self) -> str:
        """Return holds, suffers, doubles or diverges for the rise; stalled without a number.

        Where nothing was learned, no rise says anything: that is the outcome, also without an attack.

        >>> from firmware_sim.reports.forecast_errors import Error
        >>> def row(rmse):
        ...     off = Errors({"a": Error(1.0, rmse, 9)})
        ...     return TrialRow(RunSettings(), AttackPlan("alie"), off, {}, 20, clean=2.0)
        >>> [row(rmse).outcome for rmse in (2.3, 2.4, 4.0, float("inf"))]
        ['holds', 'suffers', 'doubles', 'diverges']
        """
        is_untrained = self.errors.is_untrained or self.is_clean_untrained
        if self.rise is not None and not self.rise < TENFOLD:
            return "diverges"
        if is_untrained:
            return UNTRAINED
        if self.rise is None:
            return ""
        if self.is_stalled:
            return "stalled"
        if self.rise <= HOLDS:
            return "holds"
        return "doubles" if self.rise >= DOUBLES else "suffers"

    def as_json(self) -> dict[str, Any]:
        """Return plain values; a non-finite number is None."""
        return {
            "method": self.run.method,
            "rule": self.run.rule_name,
            "encoding": self.run.encoding,
            "downlink": self.run.downlink,
            "bytes_sent_a_round": self.sent,
            "bytes_received_a_round": self.received,
            "attack": self.attack_plan.attack if self.attack_plan else None,
            "mae": _number(self.errors.mae),
            "rmse": _number(self.errors.rmse),
            "rise": None if self.rise is None else _number(self.rise),
            "outcome": self.outcome,
            "windows": self.errors.windows,
            "rounds": self.rounds,
            "refused": self.refused,
            "byzantine": sorted(self.byzantine),
            "devices": {
                name: {"mae": _number(one.mae), "rmse": _number(one.rmse)}
                for name, one in self.errors.each.items()
            },
            "intervals": {
                name: asdict(one) for name, one in self.errors.coverage_by_device.items()
            },
            "disagreement": [_number(one) for one in self.disagreements],
            "credit": self.credit.credit if self.credit else {},
            "excluded_since": {
                name: self.credit.since(name) for name in sorted(self.byzantine) if self.credit
            },
        }

    def details_text(self, unit: str) -> str:
        """Return the credit report and the interval scores as text.

        Empty where the method weighs no models and the model has no intervals.
        """
        against = f"under {self.attack_plan.attack}" if self.attack_plan else "without an attack"
        head = f"{self.run.method}, {against}"
        parts = []
        if self.credit is not None:
            parts.append(f"{head}: {self.credit.marked(self.byzantine)}")
        if self.errors.coverage_by_device:
            coverage = forecast_errors.table(self.errors.coverage_by_device, unit)
            parts.append(f"{head}: readings outside of the intervals that were served\n{coverage}")
            parts.append(self.errors.examples[0].text(unit))
        return "\n\n".join(parts)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass
class Trial:
    """All runs of one scenario, in one folder."""

    scenario: Scenario  # scenario with its runs and its attacks
    samples: SampleSet
    out: Path
    shown: Display
    broker: str = ""  # address of a running broker, or empty to start one of ``kind``
    kind: str = "auto"
    limit: float = 600.0  # time limit of one run in seconds
    seed: int = 0  # seed of the simulator's draws
    is_direct: bool = False  # true if halves run without broker, signatures and disk
    rows: list[TrialRow] = field(default_factory=list)

    def run(self) -> list[TrialRow]:
        """Run every configuration, first without an attack, then with each.

        Raises:
            Died: A program ended in failure; the aggregator refuses what a rule does not tolerate.
        """
        if self.is_direct:
            return self._all("")
        with ProcessGroup(self.out / "logs") as family:
            given = require_broker(self.broker) if self.broker else ""
            return self._all(given or start_broker(family, self.out / "broker", self.kind))

    def _all(self, url: str) -> list[TrialRow]:
        for number, learning in enumerate((self.scenario.run, *self.scenario.comparisons)):
            clean = self._one(url, f"{number}-{learning.method}", learning, None)
            self.rows.append(clean)
            for attack, attack_plan in enumerate(self.scenario.attacks):
                where = f"{number}-{learning.method}-{attack}-{attack_plan.attack}"
                row = self._one(url, where, learning, attack_plan)
                self.rows.append(
                    replace(
                        row, clean=clean.errors.rmse, is_clean_untrained=clean.errors.is_untrained
                    )
                )
        return self.rows

    @property
    def evaluated(self) -> tuple[str, ...]:
        ids = [name for name, _ in assigned(self.samples.samples, self.scenario.devices)]
        byzantine = {name for one in self.scenario.attacks for name in one.malicious(ids)}
        return tuple(name for name in ids if name not in byzantine)

    def _one(
        self, url: str, where: str, learning: RunSettings, attack_plan: AttackPlan | None
    ) -> TrialRow:
        """Execute one run; one that does not end in time is evaluated as it is."""
        run_settings = replace(
            learning, quorum=learning.awaits(available_updates(self.scenario, attack_plan))
        )
        run = self._prepared(replace(self.scenario, run=run_settings), where, url, attack_plan)
        rounds, sent, received = learning.rounds, 0, 0
        try:
            cost = run.run()
            shares = cost.devices * max(1, cost.rounds)
            sent, received = round(cost.up / shares), round(cost.down / shares)
        except TooSlow as slow:
            if attack_plan is None:
                raise
            self.shown.note(f"{where}: {slow}")
            rounds = run.moved
        if run.errors is None:
            raise TooSlow(f"{where}: no honest device could be evaluated")
        devices = self.scenario.devices
        ids = [name for name, _ in assigned(self.samples.samples, devices)]
        return TrialRow(
            learning,
            attack_plan,
            run.errors,
            run.refused,
            rounds,
            devices=devices,
            credit=run.credit,
            byzantine=attack_plan.malicious(ids) if attack_plan else frozenset(),
            sent=sent,
            received=received,
            disagreements=() if isinstance(run, FleetRun) else tuple(run.disagreements),
        )

    def _prepared(
        self, chosen: Scenario, where: str, url: str, attack_plan: AttackPlan | None
    ) -> FleetRun | PeerRun | DirectRun | DirectPeerRun:
        learning, attack = chosen.run, attack_plan.attack if attack_plan else "none"
        name = f"{learning.method} {learning.rule_name}, {attack}"
        if self.is_direct:
            from firmware_sim.direct.peer_run import DirectPeerRun  # noqa: PLC0415 - as below
            from firmware_sim.direct.run import DirectRun  # noqa: PLC0415 - loads the aggregator

            kind = DirectPeerRun if learning.is_among_peers else DirectRun
            return kind(
                chosen,
                self.samples,
                self.shown,
                limit=self.limit,
                seed=self.seed,
                name=name,
                attack_plan=attack_plan,
                evaluated=self.evaluated,
            )
        if learning.is_among_peers:
            return PeerRun(
                chosen,
                self.samples,
                self.out / where,
                self.shown,
                url,
                limit=self.limit,
                seed=self.seed,
                name=name,
                attack_plan=attack_plan,
                evaluated=self.evaluated,
            )
        return FleetRun(
            chosen,
            self.samples,
            self.out / where,
            self.shown,
            is_in_process=True,
            name=name,
            broker=url,
            limit=self.limit,
            seed=self.seed,
            fleet=f"trial-{len(self.rows)}",
            stall=STALL if attack_plan else math.inf,
            attack_plan=attack_plan,
            evaluated=self.evaluated,
        )


def available_updates(chosen: Scenario, attack_plan: AttackPlan | None) -> int:
    """Return the number of updates that a round can get: some never arrive or are refused."""
    if attack_plan is None or not attack_plan.is_silenced:
        return chosen.devices
    return chosen.devices - attack_plan.count(chosen.devices)


def table(rows: Sequence[TrialRow], unit: str) -> str:
    """Return the rows as text, with one line on every configuration."""
    names = [(_method(row), row.run.rule_name) for row in rows]
    wide = [max(map(len, column)) + 2 for column in zip(*names, ("method", "rule"), strict=True)]
    is_among_peers = any(row.disagreements for row in rows)
    head = f"{'method':{wide[0]}}{'rule':{wide[1]}}{'attack':16}"
    head += f"{'disagreement':>14}" if is_among_peers else ""
    lines = [f"{head}{'MAE':>10}{'RMSE':>10}{'rise':>12}{'refused':>9}{'B up':>9}{'B down':>9}  "]
    for (method, rule), row in zip(names, rows, strict=True):
        attack = row.attack_plan.attack if row.attack_plan else "none"
        lines.append(
            f"{method:{wide[0]}}{rule:{wide[1]}}{attack:16}{_apart(row) if is_among_peers else ''}"
            f"{row.errors.mae:10.4g}{row.errors.rmse:10.4g}{_rise(row.rise):>12}{sum(row.refused.values()):9}"
            f"{row.sent or '':>9}{row.received or '':>9}  {row.outcome}"
        )
    evaluated = len(rows[0].errors.each) if rows else 0
    lines.append(f"means over the {evaluated} devices that are honest in every run, {unit};")
    lines += ["B: bytes of a device and round", ""]
    if is_among_peers:
        words = "rule: the graph; disagreement: mean squared distance of the devices' shared layers from"
        lines[-1:] = [f"{words} their average", ""]
    text = "\n".join([*map(str.rstrip, lines), *verdicts(rows)])
    details = [
        row.details_text(unit) for row in rows if row.attack_plan is not None or len(rows) == 1
    ]
    return "\n\n".join([text, *filter(None, details)])


def _apart(row: TrialRow) -> str:
    """Return the disagreement at the end as a cell; an empty one with a server."""
    return f"{row.disagreements[-1]:14.4g}" if row.disagreements else " " * 14


def _method(row: TrialRow) -> str:
    """Return the method, with the encodings of updates and new models that are not float32."""
    run = row.run
    words = [run.method, run.encoding if run.encoding != "f4" else ""]
    words += [f"down {run.downlink}" if run.downlink != "f4" else ""]
    return " ".join(filter(None, words))


def _rise(share: float | None) -> str:
    """Return a rise as text.

    >>> _rise(0.129), _rise(-0.01), _rise(1.7e39), _rise(None)
    ('+12.9 %', '-1.0 %', 'x 1.7e+39', '')
    """
    if share is None:
        return ""
    return f"{share:+.1%}".replace("%", " %") if share < TENFOLD else f"x {1 + share:.3g}"


def verdicts(rows: Sequence[TrialRow]) -> list[str]:
    """Return one line for every configuration on its result under the attacks, the worst first.

    >>> from firmware_sim.reports.forecast_errors import Error
    >>> def row(attack, rmse):
    ...     off = Errors({"a": Error(1.0, rmse, 9)})
    ...     return TrialRow(RunSettings(), AttackPlan(attack, 0.3), off, {}, 20, clean=2.0, devices=8)
    >>> verdicts([row("alie", 2.1), row("flipping", 4.5), row("ipm", 1.9)])
    ['fedavg with mean: doubles under 25 % flipping; holds under 25 % alie, ipm']
    """
    outcomes: dict[tuple[str, str], dict[tuple[str, str], list[str]]] = {}
    for row in rows:
        if row.attack_plan is not None:
            share = f"{row.attack_plan.share(row.devices):.0%}".replace("%", " %")
            words = outcomes.setdefault((_method(row), row.run.rule_name), {})
            words.setdefault((row.outcome, share), []).append(row.attack_plan.attack)
    return [f"{method} with {rule}: {_joined(words)}" for (method, rule), words in outcomes.items()]


def _joined(words: Mapping[tuple[str, str], Sequence[str]]) -> str:
    parts = sorted(words.items(), key=lambda part: WORST_FIRST.index(part[0][0]))
    return "; ".join(
        f"{outcome} under {share} {', '.join(names)}" for (outcome, share), names in parts
    )
