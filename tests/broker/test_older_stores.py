"""A database and device stores written before modules were moved and classes renamed go on after it.

``tests/vectors/stores/fleet-before-the-move.tar.xz`` holds a fleet of two devices after two rounds,
as ``gridfed-sim fleet`` left it at commit 7e0a3a3 (FedAvg, bundle ``cells-mlp-1``). ``@HERE@`` and
``@DATA@`` in its configurations stand for the folder it is unpacked to and for the shipped readings.
"""

from __future__ import annotations

import json
import re
import tarfile
import tomllib
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from aggregator.config import AggregatorConfig
from aggregator.extensions.authority.access.broker_process import has_embedded
from edge_sdk.config import Config
from firmware_sim.fleet.federation import Federation, free_port, start_broker
from firmware_sim.fleet.processes import ProcessGroup, command, run
from firmware_sim.fleet.run_files import Device, Prepared, toml
from firmware_sim.samples import DATA, DeviceReadings

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(240)]

OLD = Path(__file__).parents[1] / "vectors" / "stores" / "fleet-before-the-move.tar.xz"


@pytest.fixture
def old(tmp_path) -> Path:
    with tarfile.open(OLD) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / "fleet"
    for path in (folder / "aggregator.toml", *sorted((folder / "devices").glob("*.toml"))):
        text = path.read_text("utf-8").replace("@HERE@", str(folder))
        table = tomllib.loads(text.replace("@DATA@", str(DATA / "cells")))
        config = AggregatorConfig if path.name == "aggregator.toml" else Config
        if config is AggregatorConfig:  # rounds ran back to back before there was a schedule
            table["run"]["schedule"] = {"rounds_per_day": "continuous"}
        path.write_text(toml(with_present_keys(table, getattr(config, "renamed", {}))), "utf-8")
    return folder


def with_present_keys(table: dict[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    """Return a configuration with every renamed key under its new name, as an operator would."""
    found = json.loads(json.dumps(table))
    for old, new in renamed.items():
        *sections, name = old.split(".")
        inner = reduce(lambda at, key: at.get(key, {}), sections, found)
        if name not in inner:
            continue
        value = inner.pop(name)
        *sections, name = new.strip("[]").split(".")
        target = reduce(lambda at, key: at.setdefault(key, {}), sections, found)
        if isinstance(value, dict):
            target.setdefault(name, {}).update(value)
        else:
            target[name] = value
    return found


def test_a_fleet_of_an_older_version_is_audited_and_continues(old, tmp_path):
    if not has_embedded():
        pytest.skip("the embedded broker (iotcore) is not installed")
    config = old / "aggregator.toml"
    devices = sorted((old / "devices").glob("*.toml"))
    assert "recomputed to the same bits" in run(command("gridfed-aggregator", "audit", str(config)))
    page = f"127.0.0.1:{free_port()}"
    with ProcessGroup(tmp_path / "logs") as group:
        url = start_broker(group, tmp_path / "broker", "embedded")
        for path in (config, *devices):
            text = re.sub(r"mqtt://127\.0\.0\.1:\d+", url, path.read_text("utf-8"))
            text = re.sub(r'"listen" = "[^"]+"', f'"listen" = "{page}"', text)
            path.write_text(text.replace('"rounds" = 2', '"rounds" = 4'), "utf-8")
        run(command("gridfed-aggregator", "announce", str(config)))
        before = json.loads(run(command("gridfed-edge", "status", str(devices[0]), "--json")))
        assert (before["round"], before["version"], before["spent"]) == (2, 2, 2)
        known = tuple(Device(one.stem, one, DeviceReadings(one.stem, one)) for one in devices)
        federation = Federation(Prepared(old, config, known, page), 4, group)
        federation.start_aggregator()
        federation.start_devices()
        for _ in federation.watch(120.0):
            pass
    after = json.loads(run(command("gridfed-edge", "status", str(devices[0]), "--json")))
    assert (after["run"], after["spent"]) == (2, 6)  # a run that was done is followed by another
    assert "4 rounds" in run(command("gridfed-aggregator", "audit", str(config)))
