"""What a simulated fleet does: a TOML file, or the options of a command, as one frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

from edge_sdk.app.settings import Duration, load
from edge_sdk.wire.schema import Between, Length
from firmware_sim.attacks.attack_plan import AttackPlan
from firmware_sim.samples import SampleSet

SCENARIOS = Path(__file__).parent / "scenarios"

Count = Annotated[int, Between(1, 100_000)]

SUITED: Mapping[str, str] = {"homes": "load-lstm-week", "cells": "cells-mlp-1"}
"""The shipped bundle that forecasts a shipped set, where nothing was said."""

UNPROTECTED: Mapping[str, Any] = {"mechanism": {"name": "none"}}
"""Nothing protects these devices' updates, and it is said aloud."""

_OWN = frozenset(
    {"fedasync", "afl", "fedatt", "fedda", "pfl", "rsa", "rsa_weights", "dp_rsa"}
    | {"bafdp", "bsfdp", "aspire_ease", "bigfl", "dfl_sgd", "dfl_gt"}
    | {"pfgl", "cnfgnn", "lstm_cnn_fedavg", "lstm_cnn_pfl"}
)
"""Methods that combine answers by themselves: a rule beside them is refused."""

_HALF = frozenset({"fedbuff", "bafdp", "aspire_ease"})
"""Methods that wait for nobody in particular: half of the fleet is their papers' habit."""


@dataclass(frozen=True, slots=True)
class Learning:
    """One run of a fleet: what the aggregator is configured with.

    Attributes:
        method: A name of ``edge_sdk.wire.contract.method.CONTRACTS``.
        shared: Prefixes of the layers that travel; left out: what the bundle says.
        rounds: How often the model moves.
        settings: The method's own numbers, such as ``steps`` and ``rate``.
        quorum: Devices that close a round; left out: as the method is meant (``awaits``).
        deadline: From opening a round to closing or abandoning it.
        rule: How answers become one: the aggregator's table ``run.rule``; left out: the mean.
        graph: The model between the devices: its table ``run.graph``, for methods that have one.
    """

    method: str = "fedavg"
    shared: tuple[str, ...] | None = None
    rounds: Count = 20
    settings: Mapping[str, Any] = field(default_factory=dict)
    quorum: Count | None = None
    deadline: Duration = "60s"
    rule: Mapping[str, Any] = field(default_factory=dict)
    graph: Mapping[str, Any] = field(default_factory=dict)

    def awaits(self, heard: int) -> int:
        """Return the quorum: as configured, or what the method is meant for.

        All that can be heard where a round asks all at once; half of them where nobody is waited
        for, and enough for the rule to bear ``f``; one where every answer moves the model.

        >>> [Learning(method).awaits(7) for method in ("fedavg", "bafdp", "bsfdp", "fedasync")]
        [7, 4, 7, 1]
        >>> Learning("fedbuff", rule={"name": "median", "f": 2}).awaits(8)
        7
        """
        if self.quorum is not None:
            return self.quorum
        if self.method == "fedasync":
            return 1
        if self.method not in _HALF:
            return heard
        f = int(self.rule.get("f", 0))
        return min(heard, max(-(-heard // 2), 2 * f + 3 if f else 1))

    @property
    def rule_name(self) -> str:
        """The rule and what comes before it, as a command line writes them.

        >>> Learning(rule={"name": "krum", "f": 1, "before": ["nnm"]}).rule_name
        'nnm+krum'
        >>> Learning().rule_name, Learning(method="bafdp").rule_name, Learning("afl").rule_name
        ('mean', 'its own', 'its own')
        """
        if not self.rule and self.method in _OWN:
            return "its own"
        before = [
            one if isinstance(one, str) else one["name"] for one in self.rule.get("before", ())
        ]
        return "+".join([*before, self.rule.get("name", "mean")])


@dataclass(frozen=True, slots=True)
class Scenario:
    """A set of devices, their readings, and what they learn.

    Attributes:
        title: For people.
        samples: Name of a shipped set.
        devices: How many; a set with fewer is used over again under other names.
        bundle: A shipped name, or a path.
        learning: The run.
        start: First reading (ISO 8601).
        until: First reading that is not learned from; empty takes all.
        judge: First and last moment of the part that forecasts are judged on.
        against: Further ways to learn, to be set beside ``learning``.
        assaults: Attacks that every way to learn has to stand, one after the other.
        privacy: Every device's ``[privacy]``.
        why: What was tried before these numbers were chosen, and on which part.
    """

    title: Annotated[str, Length(1, 200)]
    samples: str = "homes"
    devices: Count = 8
    bundle: str = "load-lstm-week"
    learning: Learning = field(default_factory=Learning)
    start: str = ""
    until: str = ""
    judge: tuple[str, ...] = ()
    against: tuple[Learning, ...] = ()
    assaults: tuple[AttackPlan, ...] = ()
    privacy: Mapping[str, Any] = field(default_factory=lambda: UNPROTECTED)
    why: str = ""

    def first_days(self, days: int, samples: SampleSet, judged: int = 7) -> Scenario:
        """Return the same with a history of so many days from the set's first reading.

        The ``judged`` days after them are those that forecasts are judged on.
        """
        times, _ = samples.samples[0].column(samples.target)
        until = datetime.fromtimestamp(int(times[0]) + 86_400 * days, UTC)
        last = until + timedelta(days=judged)
        return replace(self, until=until.isoformat(), judge=(until.isoformat(), last.isoformat()))

    @property
    def span(self) -> tuple[float, float]:
        """The judged part in Unix seconds."""
        first, last = (datetime.fromisoformat(text) for text in self.judge)
        return first.replace(tzinfo=first.tzinfo or UTC).timestamp(), last.replace(
            tzinfo=last.tzinfo or UTC
        ).timestamp()


@dataclass(frozen=True, slots=True)
class Noise:
    """A file that says how devices protect their updates, and nothing else.

    Attributes:
        privacy: A device's ``[privacy]``, for all of them.
    """

    privacy: Mapping[str, Any]

    @classmethod
    def load(cls, path: Path) -> Noise:
        """Read it.

        Raises:
            SettingsError: Naming the file and the key that does not fit.
        """
        return load(cls, path).value


PATIENT = Learning(deadline="15m")
"""For hundreds of devices on one machine: a round that nobody is late for."""


def scenario(name: str) -> Scenario:
    """Read a shipped scenario by name, or any by path.

    Raises:
        SettingsError: Naming the file and the key that does not fit.
    """
    shipped = SCENARIOS / f"{name}.toml"
    return load(Scenario, shipped if shipped.is_file() else Path(name)).value


def names() -> list[str]:
    """Return the shipped scenarios' names, sorted."""
    return sorted(path.stem for path in SCENARIOS.glob("*.toml"))
