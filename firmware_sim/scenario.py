"""Scenario of a simulated fleet, from a TOML file or the options of a command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, ClassVar

from edge_sdk.app.schema import Between, Length
from edge_sdk.app.settings import Duration, SettingsError, load
from edge_sdk.bundle import shipped_names
from edge_sdk.protocol.codec import DownlinkEncoding, UpdateEncoding
from edge_sdk.protocol.contract.archive import MANIFEST
from edge_sdk.protocol.contract.method import CONTRACTS, Up, answered
from firmware_sim.attacks.attack_plan import AttackPlan
from firmware_sim.samples import SampleSet

SCENARIOS = Path(__file__).parent / "scenarios"

# New key, or new [section], by old key of a scenario. An old one is refused with the new one.
RENAMED: Mapping[str, str] = {
    "against": "comparisons",
    "assaults": "attacks",
    "attacks[].choice": "attacks[].selection",
    "attacks[].patience": "attacks[].timeout",
    "judge": "evaluation",
    "learning": "[run]",
    "why": "tuning_notes",
}

Count = Annotated[int, Between(1, 100_000)]

# the default bundle of a shipped set
DEFAULT_BUNDLES: Mapping[str, str] = {
    "homes": "load-week-1",
    "cells": "cells-mlp-1",
    "chargers": "chargers-1",
}

# explicit setting for devices whose updates are not protected
UNPROTECTED: Mapping[str, Any] = {"mechanism": {"name": "none"}}
# graphs of the devices that a run among peers can name; any other name is a CSV file
GRAPHS = ("ring", "torus", "erdos_renyi", "complete")
# methods that combine updates themselves: a rule beside them is refused
_OWN = frozenset(
    {"fedasync", "afl", "fedatt", "fedda", "pfl", "rsa", "rsa_weights", "dp_rsa"}
    | {"bafdp", "bsfdp", "aspire_ease", "bigfl", "dfl_sgd", "dfl_gt"}
    | {"pfgl", "cnfgnn", "lstm_cnn_fedavg", "lstm_cnn_pfl"}
)

# methods whose quorum is half of the fleet, as in their papers
_HALF = frozenset({"fedbuff", "bafdp", "aspire_ease"})


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Settings of one run of a fleet, as the aggregator is configured."""

    method: str = "fedavg"  # a name of ``edge_sdk.protocol.contract.method.CONTRACTS``
    # prefixes of the shared layers; left out: those of the bundle
    shared: tuple[str, ...] | None = None
    rounds: Count = 20  # number of times the model moves
    # numbers of the method, such as ``steps`` and ``rate``
    settings: Mapping[str, Any] = field(default_factory=dict)
    # number of devices that closes a round; left out: the method's own (``awaits``)
    quorum: Count | None = None
    deadline: Duration = "60s"  # time from opening a round to closing or abandoning it
    # aggregation rule: the aggregator's table ``run.rule``; left out: the mean
    rule: Mapping[str, Any] = field(default_factory=dict)
    # model between the devices: its table ``run.graph``, for methods that have one. Without a server
    # the graph of the devices
    graph: Mapping[str, Any] = field(default_factory=dict)
    encoding: UpdateEncoding = "f4"  # encoding of the updates: its key ``run.encoding``
    downlink: DownlinkEncoding = "f4"  # encoding of new models: its key ``run.downlink``
    seed: Annotated[int, Between(0, 2**63 - 1)] = 0  # seed of the aggregator's draws

    def awaits(self, present: int) -> int:
        """Return the quorum: as configured, or the method's own.

        All devices that can send where a round asks all at once; half of them where a round waits
        for no device in particular, and enough for the rule's ``f``; one where every update moves
        the model.

        >>> [RunSettings(method).awaits(7) for method in ("fedavg", "bafdp", "bsfdp", "fedasync")]
        [7, 4, 7, 1]
        >>> RunSettings("fedbuff", rule={"name": "median", "f": 2}).awaits(8)
        7
        """
        if self.quorum is not None:
            return self.quorum
        if self.method in {"fedasync", "cached"}:
            return 1
        if self.method not in _HALF:
            return present
        f = int(self.rule.get("f", 0))
        return min(present, max(-(-present // 2), 2 * f + 3 if f else 1))

    @property
    def is_among_peers(self) -> bool:
        """Return whether the devices exchange models with one another, without a server.

        >>> RunSettings("dfl_sgd").is_among_peers, RunSettings("fedavg").is_among_peers
        (True, False)
        """
        return self.method in CONTRACTS and answered(CONTRACTS[self.method])[1].up is Up.PEERS

    @property
    def rule_name(self) -> str:
        """Return the rule and its pre-aggregations as on a command line; the graph among peers.

        >>> RunSettings(rule={"name": "krum", "f": 1, "preaggregation": ["nnm"]}).rule_name
        'nnm+krum'
        >>> RunSettings().rule_name, RunSettings(method="bafdp").rule_name, RunSettings("afl").rule_name
        ('mean', 'its own', 'its own')
        """
        if self.is_among_peers and "name" in self.graph:
            return Path(str(self.graph["name"])).name
        if not self.rule and self.method in _OWN:
            return "its own"
        before = [
            one if isinstance(one, str) else one["name"]
            for one in self.rule.get("preaggregation", ())
        ]
        return "+".join([*before, self.rule.get("name", "mean")])


@dataclass(frozen=True, slots=True)
class Scenario:
    """A set of devices, their readings, and their runs."""

    title: Annotated[str, Length(1, 200)]
    samples: str = "homes"  # name of a shipped set
    devices: Count = 8  # number of devices; a smaller set is used again under other names
    bundle: str = "load-lstm-week"  # a shipped name, or a path
    run: RunSettings = field(default_factory=RunSettings)
    start: str = ""  # first reading (ISO 8601)
    until: str = ""  # first reading that is not used for training; empty takes all
    # first and last moment of the part that forecasts are evaluated on
    evaluation: tuple[str, ...] = ()
    # first and last moment of the part before it, by which the demo chooses a method
    validation: tuple[str, ...] = ()
    # days of history of the last device; 0 gives it as many as all others
    newcomer_days: Annotated[int, Between(0, 10_000)] = 0
    comparisons: tuple[RunSettings, ...] = ()  # settings of further runs to compare with ``run``
    # attacks that are applied to every run, one after the other
    attacks: tuple[AttackPlan, ...] = ()
    # ``[privacy]`` of every device
    privacy: Mapping[str, Any] = field(default_factory=lambda: UNPROTECTED)
    tuning_notes: str = ""  # record of the numbers that were tried before, and on which part
    renamed: ClassVar[Mapping[str, str]] = RENAMED

    def first_days(self, days: int, samples: SampleSet, evaluation_days: int = 7) -> Scenario:
        """Return the scenario with a history of some days from the set's first reading.

        Forecasts are evaluated on the ``evaluation_days`` days after them.
        """
        times, _ = samples.samples[0].column(samples.target)
        until = datetime.fromtimestamp(int(times[0]) + 86_400 * days, UTC)
        last = until + timedelta(days=evaluation_days)
        return replace(
            self, until=until.isoformat(), evaluation=(until.isoformat(), last.isoformat())
        )

    def of_newcomer(self) -> Scenario:
        """Return the scenario of the last device, whose history may be shorter."""
        return replace(self, start=self.newcomer_start) if self.newcomer_days else self

    def with_seed(self, seed: int) -> Scenario:
        """Return the scenario with a seed for the aggregator's draws and those of the attacks."""
        return replace(
            self,
            run=replace(self.run, seed=seed),
            comparisons=tuple(replace(one, seed=seed) for one in self.comparisons),
            attacks=tuple(replace(one, seed=seed) for one in self.attacks),
        )

    @property
    def span(self) -> tuple[float, float]:
        """Return the evaluated part in Unix seconds."""
        first, last = map(unix_seconds, self.evaluation)
        return first, last

    @property
    def validation_span(self) -> tuple[float, float] | None:
        """Return the validation part in Unix seconds; None without one."""
        if not self.validation:
            return None
        first, last = map(unix_seconds, self.validation)
        return first, last

    @property
    def newcomer_start(self) -> str:
        """Return the first moment of the last device's history; empty for that of all others."""
        if not self.newcomer_days:
            return ""
        end = unix_seconds(self.until) - 86_400 * self.newcomer_days
        return datetime.fromtimestamp(end, UTC).isoformat()


def unix_seconds(moment: str) -> float:
    """Return an ISO time in Unix seconds; UTC without an offset.

    >>> unix_seconds("1970-01-02T00:00Z"), unix_seconds("1970-01-02T00:00")
    (86400.0, 86400.0)
    """
    found = datetime.fromisoformat(moment)
    return found.replace(tzinfo=found.tzinfo or UTC).timestamp()


@dataclass(frozen=True, slots=True)
class PrivacyFile:
    """A file with the devices' privacy settings only."""

    privacy: Mapping[str, Any]  # ``[privacy]`` of all devices

    @classmethod
    def load(cls, path: Path) -> PrivacyFile:
        """Read the file; raise SettingsError with the file and the key that does not fit."""
        return load(cls, path).value


# settings for thousands of devices on one busy machine: a deadline that no device misses
LONG_DEADLINE = RunSettings(deadline="2h")


def scenario(name: str) -> Scenario:
    """Read a shipped scenario by name, or any by path; raise SettingsError with the key that does not fit."""
    shipped = SCENARIOS / f"{name}.toml"
    file = shipped if shipped.is_file() else Path(name)
    found = load(Scenario, file).value
    bundle = bundle_at(found.bundle, file.parent, f"{file.name}: bundle")
    runs = [located(one, file.parent) for one in (found.run, *found.comparisons)]
    return replace(found, bundle=bundle, run=runs[0], comparisons=tuple(runs[1:]))


def located(run: RunSettings, folder: Path) -> RunSettings:
    """Return the settings with the files of sites, neighbours and graphs as absolute paths.

    Args:
        folder: Base of a relative path.

    >>> located(RunSettings(graph={"sites": "a.csv"}), Path("/x")).graph["sites"]
    '/x/a.csv'
    """
    settings, graph = dict(run.settings), dict(run.graph)
    for table, key in ((settings, "neighbours"), (graph, "sites"), (graph, "name")):
        if isinstance(table.get(key), str) and table[key] not in GRAPHS:
            table[key] = str((folder / table[key]).absolute())
    return replace(run, settings=settings, graph=graph)


def bundle_at(bundle: str, folder: Path, key: str) -> str:
    """Return a shipped name unchanged, or the absolute path of a bundle in a folder.

    Args:
        folder: Base of a relative path.
        key: Option or key that names the bundle, for the error.
    """
    if bundle in shipped_names():
        return bundle
    path = (folder / Path(bundle).expanduser()).absolute()
    if not (path / MANIFEST).is_file():
        raise SettingsError(
            f"{key} {bundle}: neither a shipped bundle nor a folder with a {MANIFEST}",
            hint=f"shipped bundles: {', '.join(shipped_names())}",
        )
    return str(path)


def names() -> list[str]:
    return sorted(path.stem for path in SCENARIOS.glob("*.toml"))
