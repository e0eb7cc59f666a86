"""Set up the devices and the server of a direct simulation from a scenario."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, tzinfo
from pathlib import Path
from types import MappingProxyType
from typing import Any

from aggregator.config import AggregatorConfig, BoundRun, bind
from edge_sdk import METHODS, Config
from edge_sdk.app.permissions import make_private_folder
from edge_sdk.app.settings import SettingsError
from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.forecasting.series import Series
from edge_sdk.forecasting.windows import WHOLE, ChannelFrame, Scale, Span
from edge_sdk.privacy.mechanism import Mechanism
from edge_sdk.protocol.contract.manifest import Manifest
from edge_sdk.protocol.contract.method import CONTRACTS, Half
from edge_sdk.protocol.root_keys import read_root
from edge_sdk.training.bootstrap import plan
from edge_sdk.training.model_runtime import ModelRuntime
from edge_sdk.training.run_role import RunRole, RunShell, history_of
from firmware_sim.attacks.attack_plan import AttackPlan
from firmware_sim.attacks.byzantine_halves import ByzantineHalves, recorded
from firmware_sim.attacks.coalition import Coalition
from firmware_sim.direct.device import DirectDevice
from firmware_sim.direct.peers import NO_RUN, PeerSimulation
from firmware_sim.direct.server import RUN, DirectServer
from firmware_sim.direct.simulation import (
    USUAL,
    ArrivalPlan,
    ArrivalTimes,
    DirectSimulation,
    MayAnswer,
    VirtualClock,
)
from firmware_sim.fleet.in_process import on_grid, readings
from firmware_sim.fleet.run_files import (
    aggregator_table,
    assigned,
    device_table,
    signed_bundle,
    toml,
)
from firmware_sim.reports.forecast_errors import Error, Errors, is_untrained
from firmware_sim.samples import DeviceReadings, SampleSet
from firmware_sim.scenario import RunSettings, Scenario

Factory = Callable[..., Half[Any]]

# virtual seconds that an omniscient Byzantine device waits for the honest updates of a round
PATIENCE = 60.0
_URL = "mqtt://127.0.0.1"  # the configurations name a broker; nothing connects to it


def refuse_unsupported(
    run: RunSettings, privacy: Mapping[str, Any], attack_plan: AttackPlan | None = None
) -> None:
    """Raise SettingsError for an option that a simulation without broker and store lacks, with the way that works."""
    method = run.method
    contract = CONTRACTS.get(method, {})
    hint = "leave --direct out: the run then has a broker"
    if any(ask.perishable for ask in contract.values()):
        raise SettingsError(f"--direct: {method} exchanges activations during a round", hint=hint)
    if dict(privacy.get("mechanism", {})).get("name", "none") != "none":
        raise SettingsError("--direct: a privacy mechanism needs the device's store", hint=hint)
    kind = attack_plan.bound.attack.kind if attack_plan is not None else "model"
    allowed = {"model"} if run.is_among_peers else {"model", "data"}
    if attack_plan is not None and kind not in allowed:
        raise SettingsError(
            f"--direct: attack {attack_plan.attack} changes a {kind}, which there is none of",
            hint=hint,
        )


@dataclass
class DirectFleet:
    """The parts that all devices share, and the devices."""

    scenario: Scenario
    samples: SampleSet
    bound: BoundRun  # the bound configuration of the aggregator
    bundle: Bundle  # the verified bundle, with its graphs loaded once
    config: Config  # configuration of a device; each has its own id
    histories: SharedHistories  # series and channels
    samples_of: dict[str, DeviceReadings]  # readings of each device, by id
    seed: int = 0  # seed of the order of arrival
    attack_plan: AttackPlan | None = None  # attack on the run; None without one
    arrivals: ArrivalPlan = USUAL
    _mechanism: Mechanism | None = None

    @classmethod
    def of(
        cls,
        chosen: Scenario,
        samples: SampleSet,
        *,
        seed: int = 0,
        attack_plan: AttackPlan | None = None,
        arrivals: ArrivalPlan = USUAL,
    ) -> DirectFleet:
        """Bind the scenario; a bundle in a folder is signed with a key of this simulation.

        Raises:
            SettingsError: As ``refuse_unsupported``, or a value that does not fit the run.
            BundleError: The bundle is missing or damaged.
        """
        refuse_unsupported(chosen.run, chosen.privacy, attack_plan)
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gridfed-sim-")))
            make_private_folder(folder)
            chosen = replace(chosen, bundle=signed_bundle(folder, chosen.bundle))
            scratch = Path(tempfile.gettempdir())  # the simulation outlives the folder
            hosted = replace(chosen, run=hosted_run(chosen.run))
            bound = bind(_aggregator_config(hosted, folder), scratch)
            config = _device_config(chosen, folder)
            public = bound.config.root_public
            roots = read_root(public).keys if public.is_file() else ()
            bundle = Bundle.open(chosen.bundle, trust=TrustedKeys(roots))
            _ = [bundle.graphs[name] for name in bundle.graphs]  # loaded before the files go
        capacity = history_of(config, bundle.manifest).slots
        return cls(
            chosen,
            samples,
            bound,
            bundle,
            config,
            SharedHistories(samples, bundle.manifest, capacity),
            dict(assigned(samples.samples, chosen.devices)),
            seed,
            attack_plan,
            arrivals,
        )

    @property
    def ids(self) -> list[str]:
        return sorted(self.samples_of)

    def simulation(self) -> DirectSimulation:
        """Return a simulation at its beginning; each call begins again with the same seeds."""
        clock = VirtualClock()
        factories, waits = self._factories(self.ids, clock)
        devices = self._devices(factories)
        server = DirectServer(self.bound, self.ids)
        return DirectSimulation(
            server, devices, ArrivalTimes(self.seed, self.arrivals), waits, clock
        )

    def peer_simulation(self) -> PeerSimulation:
        """Return a simulation among peers at its beginning; each call begins again.

        Raises:
            SettingsError: Settings or a graph that do not fit.
        """
        return PeerSimulation.of(
            self._devices({}), self.scenario.run, self.seed, attack_plan=self.attack_plan
        )

    def errors(
        self, simulation: DirectSimulation | PeerSimulation, evaluated: tuple[str, ...]
    ) -> Errors:
        """Score the devices' forecasts on readings after their histories."""
        found, untrained = {}, []
        for name in evaluated:
            judged = self.judged(simulation, name)
            state = simulation.devices[name].state
            _, predicted, truth = judged.rolling(state, *self.scenario.span)
            found[name] = Error.of(predicted, truth)
            untrained.append(is_untrained(judged, state, predicted, self.scenario.span))
        return Errors(found, is_untrained=bool(untrained) and all(untrained))

    def judged(self, simulation: DirectSimulation | PeerSimulation, name: str) -> ModelRuntime:
        """Return the runtime of a device with the readings after its history."""
        later = replace(self.scenario, until=self.scenario.evaluation[1])
        series = self.histories.series(self.samples_of[name], later)
        judged = self._runtime(name, series, METHODS[self.bound.config.run.method])
        judged.scale = simulation.devices[name].learner.scale
        return judged

    def _devices(self, factories: Mapping[str, Factory]) -> dict[str, DirectDevice]:
        last = list(self.samples_of)[-1]
        return {x: self._device(x, factories.get(x), is_last=x == last) for x in self.ids}

    def _device(self, name: str, factory: Factory | None, *, is_last: bool) -> DirectDevice:
        chosen = self.scenario.of_newcomer() if is_last else self.scenario
        series = self.histories.series(self.samples_of[name], chosen)
        method = self.bound.config.run.method
        learner = self._runtime(name, series, factory or METHODS[method])
        return DirectDevice(learner, self.bound.limits.encs)

    def _runtime(self, name: str, series: Series, factory: Factory) -> ModelRuntime:
        run = self.bound.config.run
        number = NO_RUN if self.scenario.run.is_among_peers else RUN
        return ModelRuntime(
            replace(self.config, id=name),
            self.bundle,
            RunRole(number, run.method, tuple(self.bound.shared)),
            series,
            self._shared_mechanism(),
            RunShell({run.method: factory}, frames=self.histories.frame),
        )

    def _shared_mechanism(self) -> Mechanism:
        if self._mechanism is None:
            method, size = self.bound.config.run.method, self.bound.spec.shared_size
            made = plan(self.config, self.bundle.manifest, method, size)
            reports = [number for ask in CONTRACTS[method].values() for number in ask.report]
            measured = frozenset({"n", *(number.name for number in reports if number.measured)})
            self._mechanism = Mechanism(made, measured)
        return self._mechanism

    def _factories(
        self, ids: list[str], clock: VirtualClock
    ) -> tuple[dict[str, Factory], dict[str, MayAnswer]]:
        attack_plan = self.attack_plan
        if attack_plan is None:
            return {}, {}
        bound, malicious = attack_plan.bound, attack_plan.malicious(ids)
        method = self.bound.config.run.method
        coalition = Coalition(frozenset(ids) - malicious, malicious, PATIENCE, clock.monotonic)
        found: dict[str, Factory] = {}
        waits: dict[str, MayAnswer] = {}
        for name in ids:
            if name in malicious:
                attacker = ByzantineHalves(
                    name,
                    bound,
                    coalition,
                    start_round=attack_plan.start_round,
                    is_colluding=attack_plan.colluding,
                    seed=attack_plan.seed,
                )
                attacker.read_features(lambda: self.bundle.manifest.features)
                found[name], waits[name] = attacker.methods()[method], attacker.may_answer
            elif bound.attack.is_omniscient:
                found[name] = recorded(coalition, name)[method]
        return found, waits


def hosted_run(run: RunSettings) -> RunSettings:
    """Return the run as an aggregator binds it: one that hosts peers has no use for a graph."""
    return replace(run, graph={}) if run.is_among_peers else run


def _aggregator_config(chosen: Scenario, folder: Path) -> AggregatorConfig:
    file = folder / "aggregator.toml"
    file.write_text(toml(aggregator_table("sim", chosen, _URL, "off")), encoding="utf-8")
    return AggregatorConfig.load(file)


def _device_config(chosen: Scenario, folder: Path) -> Config:
    table = device_table("sim", chosen, _URL, folder / "root.pub", choose_best=False)
    keys = {"device": "device.key", "root": table.pop("root")}
    own = {"id": "device", "state": "device", "keys": keys}
    file = folder / "device.toml"
    file.write_text(toml({**own, **table}), encoding="utf-8")
    return Config.load(file)


@dataclass
class SharedHistories:
    """Series by file and span, and channels by series: each is computed once and never changed."""

    samples: SampleSet
    manifest: Manifest
    capacity: int  # slots of a device's history
    _series: dict[tuple[Path, str, str], Series] = field(default_factory=dict)
    _frames: dict[tuple[object, ...], ChannelFrame] = field(default_factory=dict)

    def series(self, sample: DeviceReadings, chosen: Scenario) -> Series:
        """Return the readings of a device in the scenario's span, on the bundle's grid."""
        key = (sample.path, chosen.start, chosen.until)
        if key not in self._series:
            history = readings(sample, self.samples, chosen)
            made = on_grid(self.manifest, self.capacity, history)
            made.saved(made.pending())
            self._series[key] = made
        return self._series[key]

    def frame(
        self,
        series: Series,
        manifest: Manifest,
        *,
        site: Mapping[str, float] = MappingProxyType({}),
        zone: tzinfo = UTC,
        scale: Scale | None = None,
        span: Span = WHOLE,
    ) -> ChannelFrame:
        """Return the channels of a series, as ``ChannelFrame.of``; equal arguments share them."""
        key = (id(series), tuple(sorted(site.items())), zone, scale, span)
        if key not in self._frames:
            made = ChannelFrame.of(series, manifest, site=site, zone=zone, scale=scale, span=span)
            self._frames[key] = made
        return self._frames[key]
