"""Files that a fleet is started from: keys, configurations, and enrolments."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edge_sdk import Config
from edge_sdk.app.permissions import make_private_folder
from edge_sdk.app.settings import from_table
from edge_sdk.bundle import shipped_names
from edge_sdk.privacy import PrivacySection
from edge_sdk.protocol.contract.archive import MANIFEST, SIGNATURE, seal
from edge_sdk.protocol.contract.method import CONTRACTS
from edge_sdk.protocol.keys import generate, save_public, save_signing_key
from edge_sdk.store.second_count import begin_counts
from firmware_sim.fleet.processes import command, run
from firmware_sim.samples import DeviceReadings, SampleSet
from firmware_sim.scenario import UNPROTECTED, RunSettings, Scenario

# short timeouts of a simulated device beside its broker
FAST = {"reply": "2s", "retained_model": "2s"}
# Largest number of devices with short timeouts. More share one thread, and need the defaults.
MOST_FAST = 16


@dataclass(frozen=True, slots=True)
class Device:
    """Configuration file of one device, and its readings."""

    id: str
    config: Path
    sample: DeviceReadings
    # settings of extensions that are its own, by table
    extensions: Mapping[str, Any] = field(default_factory=dict)

    def configured(self, like: Config) -> Config:
        """Return a device's configuration, derived from that of another device with the same readings."""
        state = self.config.with_suffix("").absolute()
        key = self.config.with_suffix(".key").absolute()
        keys, extensions = replace(like.keys, device=key), {**like.extensions, **self.extensions}
        return replace(like, id=self.id, state=state, keys=keys, extensions=extensions)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A fleet that can be started."""

    folder: Path  # everything lies below it
    aggregator: Path
    devices: tuple[Device, ...]  # devices in order of their ids
    page: str  # address of the aggregator's page, ``host:port``


def toml(table: Mapping[str, Any]) -> str:
    """Return a mapping as TOML: a line a key, tables inline. None is left out.

    >>> print(toml({"id": "a", "keys": {"root": Path("r.pub")}, "shared": ("lstm.",), "url": None}))
    id = "a"
    keys = { "root" = "r.pub" }
    shared = ["lstm."]
    <BLANKLINE>
    """
    return "".join(
        f"{key} = {_value(value)}\n" for key, value in table.items() if value is not None
    )


def _value(value: Any) -> str:  # noqa: ANN401 - any TOML value
    if isinstance(value, Mapping):
        inside = (f"{json.dumps(k)} = {_value(v)}" for k, v in value.items() if v is not None)
        return "{ " + ", ".join(inside) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)


def assigned(samples: Sequence[DeviceReadings], devices: int) -> list[tuple[str, DeviceReadings]]:
    """Assign readings to every device; with more devices than samples, they are used again.

    >>> a, b = DeviceReadings("a", Path("a")), DeviceReadings("b", Path("b"))
    >>> [id for id, _ in assigned([a, b], 5)]
    ['a', 'b', 'a-2', 'b-2', 'a-3']
    """
    given = []
    for number in range(devices):
        sample, turn = samples[number % len(samples)], number // len(samples)
        given.append((f"{sample.device}-{turn + 1}" if turn else sample.device, sample))
    return given


def prepare(
    folder: Path,
    fleet: str,
    chosen: Scenario,
    samples: SampleSet,
    *,
    broker: str,
    page: str,
    choose_best: bool = True,
) -> Prepared:
    """Write every file of a fleet, make its keys and enrol its devices.

    Args:
        folder: Made if missing; must not hold an earlier fleet.
        fleet: Name of the fleet, in topics and signatures.
        broker: Address of a running broker.
        page: Address of the aggregator's page.
        choose_best: Whether devices tune a copy of the model and compare candidates, as by default.

    Raises:
        Died: The aggregator's own commands refused; the hint is their output.
    """
    make_private_folder(folder)
    chosen = replace(chosen, bundle=signed_bundle(folder, chosen.bundle))
    config = folder / "aggregator.toml"
    config.write_text(toml(aggregator_table(fleet, chosen, broker, page)), encoding="utf-8")
    run(command("gridfed-aggregator", "init", str(config)))
    root = folder / "aggregator" / "root.pub"
    common = device_table(fleet, chosen, broker, root, choose_best=choose_best)
    is_plugin = chosen.run.method not in list(
        CONTRACTS
    )  # which a device accepts only if it is named
    if is_plugin or chosen.privacy != UNPROTECTED:  # or judges its noise by the method it expects
        common["accept"]["methods"] = [chosen.run.method]
    devices = _enrolled(folder, config, common, chosen, samples)
    run(command("gridfed-edge", "check", str(devices[0].config)))  # readings, bundle, noise
    return Prepared(folder, config, devices, page)


def signed_bundle(folder: Path, bundle: str) -> str:
    """Return a shipped name; copy any other bundle and sign the copy with the root of this fleet.

    The fleet and its root key exist for one run, and its devices trust that root only.
    """
    if bundle in shipped_names():
        return bundle
    make_private_folder(folder / "aggregator")
    root = generate()
    save_signing_key(folder / "aggregator" / "root.key", root)  # which init takes over
    save_public(folder / "aggregator" / "root.pub", root.public)
    copied = (folder / "bundle" / Path(bundle).name).absolute()
    shutil.copytree(bundle, copied)
    (copied / SIGNATURE).write_bytes(seal(root, (copied / MANIFEST).read_bytes()))
    return str(copied)


def join(
    folder: Path,
    config: Path,
    chosen: Scenario,
    samples: SampleSet,
    *,
    broker: str,
    choose_best: bool = True,
) -> Prepared:
    """Write the devices' files only, and enrol them with an aggregator that already runs.

    Args:
        config: The aggregator's own configuration, on this machine.
        chosen: The scenario; the aggregator defines the run.
        broker: Address of the broker that the aggregator is connected to.
        choose_best: As for ``prepare``.

    Raises:
        Died: The aggregator's own commands refused; the hint is their output.
    """
    checked = json.loads(run(command("gridfed-aggregator", "check", str(config), "--json")))
    settings = {row["key"]: row["value"] for row in checked["settings"]}
    root = Path(settings.get("keys.root") or "")
    root = root if root.is_file() else Path(settings["state"]) / "root.pub"
    common = device_table(settings["fleet"], chosen, broker, root, choose_best=choose_best)
    devices = _enrolled(folder, config, common, chosen, samples)
    return Prepared(folder, config, devices, settings["http.listen"])


def _enrolled(
    folder: Path, config: Path, common: Mapping[str, Any], chosen: Scenario, samples: SampleSet
) -> tuple[Device, ...]:
    devices = written(folder, common, chosen, samples)
    claims = folder / "claims.csv"
    with claims.open("w", encoding="utf-8", newline="") as out:
        rows = csv.writer(out, lineterminator="\n")
        rows.writerow(["id", "public", "proof"])
        for device in devices:
            public = device.config.with_suffix(".pub").read_text(encoding="ascii").strip()
            rows.writerow([device.id, public, ""])
    enrol = ("enrol", "--from-file", str(claims), "--config", str(config))
    run(command("gridfed-aggregator", *enrol), timeout=max(60.0, 0.1 * len(devices)))
    return devices


def written(
    folder: Path, common: Mapping[str, Any], chosen: Scenario, samples: SampleSet
) -> tuple[Device, ...]:
    """Write the key and the configuration of every device below ``folder / "devices"``."""
    given = assigned(samples.samples, chosen.devices)
    starts = [chosen.start] * len(given)
    starts[-1] = chosen.newcomer_start or chosen.start
    return tuple(
        _device(folder / "devices", name, sample, common, _source(chosen, samples, sample, start))
        for (name, sample), start in zip(given, starts, strict=True)
    )


def aggregator_table(fleet: str, chosen: Scenario, broker: str, page: str) -> dict[str, Any]:
    """Return the aggregator's configuration for a scenario, as a table."""
    learning: RunSettings = chosen.run
    return {
        "fleet": fleet,
        "state": "aggregator",
        "broker": {"url": broker},
        "http": {"listen": page},
        "pacing": {"jitter": "0s", "broadcast_bytes_per_second": 1e9, "updates_per_second": 1e6},
        "admission": {"daily_bytes": 2_000_000_000, "messages_per_minute": 100_000},
        "run": {
            "bundle": chosen.bundle,
            "method": learning.method,
            "shared": learning.shared,
            "settings": dict(learning.settings),
            "quorum": learning.awaits(chosen.devices),
            "rounds": learning.rounds,
            "deadline": learning.deadline,
            "rule": dict(learning.rule) or None,
            "graph": dict(learning.graph) or None,
            "seed": learning.seed or None,
            "encoding": learning.encoding,
            "downlink": learning.downlink,
            "schedule": {"rounds_per_day": "continuous"},
        },
    }


def device_table(
    fleet: str, chosen: Scenario, broker: str, root: Path, *, choose_best: bool
) -> dict[str, Any]:
    """Return the configuration that all devices share."""
    settings = chosen.run.settings
    steps = int(settings.get("steps", 0))
    local = {"interval": "0s", "steps": steps or None, "rate": settings.get("rate")}
    accept: dict[str, Any] = {"max_steps": max(64, steps)}
    if settings.get("clustering") == "profiles":
        accept["weekly_profile"] = True
    return {
        "fleet": fleet,
        "bundle": chosen.bundle,
        "broker": {"url": broker, "reconnect_max": "5s"},
        "root": root.absolute(),
        "accept": accept,
        "timeouts": FAST if chosen.devices <= MOST_FAST else {},
        "local_rounds": local if chosen.run.shared == () else {},
        "forecast": {} if choose_best else {"choose_best": False},
        "privacy": dict(chosen.privacy),
    }


def _source(
    chosen: Scenario, samples: SampleSet, sample: DeviceReadings, start: str
) -> dict[str, Any]:
    source: dict[str, Any] = {
        "type": "csv",
        "path": sample.path.absolute(),
        "columns": samples.present(sample),
        "interval_seconds": sample.step(samples.target),
    }
    bounds = {"from": start, "until": chosen.until}
    return source | {key: moment for key, moment in bounds.items() if moment}


def _device(
    folder: Path,
    name: str,
    sample: DeviceReadings,
    common: Mapping[str, Any],
    source: Mapping[str, Any],
) -> Device:
    make_private_folder(folder)
    key = generate()
    save_signing_key(folder / f"{name}.key", key)
    save_public(folder / f"{name}.pub", key.public)
    if from_table(PrivacySection, dict(common["privacy"]), "privacy").is_bounded:
        begin_counts(folder / f"{name}.count", key, {})
    shared = {key: value for key, value in common.items() if key != "root"}
    own = {
        "id": name,
        "state": name,
        "keys": {"device": f"{name}.key", "root": common["root"]},
        "source": [source],
    }
    config = folder / f"{name}.toml"
    config.write_text(toml({**own, **shared}), encoding="utf-8")
    return Device(name, config, sample)
