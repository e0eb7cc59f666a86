"""Settings of a simulated run among peers, from the tables ``[run]`` and ``[run.graph]`` of a scenario."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from edge_sdk.app.schema import SchemaError, build, build_value
from edge_sdk.app.settings import SettingsError, seconds
from edge_sdk.extensions.peers.topology import NeighboursSection, settings_of_section
from edge_sdk.protocol.contract.parameter_layout import Vector
from firmware_sim.attacks.attack_plan import AttackPlan
from firmware_sim.peers.graphs import Links, Mixing, PeerGraph, Weights, weights_of
from firmware_sim.scenario import RunSettings

# Seconds until a neighbour counts as missing: of any fleet, and more of each device, which all share
# one thread. A quarter of it is the time until an offer that was not answered is repeated.
_DEADLINE, _DEADLINE_EACH = 20.0, 0.2


@dataclass(frozen=True, slots=True)
class PeerPlan:
    """The graph, the mixing and the devices' settings of one run among peers."""

    run: RunSettings
    graph: PeerGraph
    mixing: Mixing
    section: NeighboursSection  # ``[neighbours]`` of every device, without its neighbours

    @classmethod
    def of(cls, run: RunSettings, devices: int = 0) -> PeerPlan:
        """Read the settings of a run.

        Args:
            devices: Number of devices, for the deadline.

        Raises:
            SettingsError: A setting that does not fit, or that a run without a server has no use for.
        """
        for used, option, hint in (
            (run.rule, "--rule", "leave it out; --setting robust=clip or trim bounds a neighbour"),
            (run.encoding != "f4", "--encoding", "leave it out: neighbours exchange float32"),
            (run.downlink != "f4", "--downlink", "leave it out: there is no server"),
        ):
            if used:
                raise SettingsError(f"{option}: {run.method} has no use for it", hint=hint)
        deadline = min(seconds(run.deadline), _DEADLINE + _DEADLINE_EACH * devices)
        own = {key: value for key, value in run.settings.items() if key != "mixing"}
        table = {"interval": "0s", "deadline": f"{deadline:g}s", **own}
        try:
            graph = build(PeerGraph, dict(run.graph), where="run.graph")
            section = build(NeighboursSection, table, where="run.settings")
            section = replace(section, total_steps=run.rounds * section.steps)
            settings_of_section(section, run.method)
            named = run.settings.get("mixing", "metropolis")
            mixing: Mixing = build_value(Mixing, named, where="run.settings.mixing")  # type: ignore[arg-type]
        except SchemaError as misfit:
            raise SettingsError(str(misfit)) from misfit
        if graph.directed and (run.method != "dfl_sgd" or section.robust != "none"):
            raise SettingsError(
                "run.graph.directed: push-sum mixes the models of dfl_sgd, and neither trackers nor "
                "models that are clipped or trimmed",
                hint="--method dfl_sgd without robust; or leave directed out",
            )
        return cls(run, graph, mixing, section)

    @property
    def values(self) -> Mapping[str, float]:
        """Return the numbers of the tasks of the device's half."""
        return settings_of_section(self.section, self.run.method).values

    def links(self, devices: Sequence[str], seed: int) -> Links:
        """Return the links of the graph; raise SettingsError if it does not connect the devices."""
        try:
            return self.graph.links(devices, seed)
        except SchemaError as misfit:
            raise SettingsError(str(misfit)) from misfit

    def weights(self, devices: Sequence[str], links: Links) -> Weights:
        """Return the weights of undirected links; raise SettingsError where the mixing has none."""
        try:
            return weights_of(devices, links, self.mixing)
        except SchemaError as misfit:
            raise SettingsError(str(misfit)) from misfit

    def refuse_over_a_broker(self, attack_plan: AttackPlan | None) -> None:
        """Raise SettingsError for what only a direct simulation has."""
        if not self.graph.is_fixed:
            raise SettingsError(
                "run.graph: over a broker both ends of a link mix, in every exchange",
                hint="add --direct, or leave directed and present out",
            )
        if attack_plan is not None:
            raise SettingsError(
                "--attack: Byzantine neighbours are simulated without a broker", hint="add --direct"
            )

    def table(self, keys: Mapping[str, str], weights: Mapping[str, float]) -> dict[str, Any]:
        """Return ``[neighbours]`` of a device.

        Args:
            keys: Public key of each neighbour, hexadecimal.
            weights: Weight of each neighbour; the devices compute metropolis themselves.
        """
        given = {} if self.mixing == "metropolis" else {"weights": dict(weights)}
        own = {key: value for key, value in asdict(self.section).items() if value not in (None, {})}
        return {**own, "keys": dict(keys), **given}


def disagreement(vectors: Collection[Vector]) -> float:
    """Return the mean squared distance of the devices' shared layers from their average.

    It is the consensus violation of the graph-aware chapter, ``1/n sum_i |theta_i - mean|^2``.

    >>> disagreement([np.array([1.0, 0.0]), np.array([3.0, 0.0])])
    1.0
    """
    rows = np.array(list(vectors), np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.mean(np.sum((rows - rows.mean(axis=0)) ** 2, axis=1)))
