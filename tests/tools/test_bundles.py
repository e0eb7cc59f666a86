"""The shipped bundles are what the exporter writes today, to the byte."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnx")

from edge_sdk.bundle import shipped_folder, shipped_names
from tools.bundles import NAMES, write

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(900)]
SHIPPED_IN = shipped_folder()


TWINS = (
    "cells-branches-1",
    "cells-gru-24",
    "cells-lstm-1",
    "cells-mlp-1",
    "cells-week-24",
    "chargers-1",
    "chargers-week-1",
    "load-week-weather-1",
)
"""Bundles of the same net as another, with another horizon or fewer inputs."""


def test_the_catalogue_names_the_shipped_bundles():
    assert sorted(NAMES) == shipped_names()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.soak] if name in TWINS else [])
        for name in shipped_names()
    ],
)
def test_exporting_again_gives_the_shipped_files(tmp_path, name):
    write(tmp_path, [name])
    made, kept = ({p.name: p for p in (root / name).iterdir()} for root in (tmp_path, SHIPPED_IN))
    assert made.keys() == kept.keys()
    for file in made.keys() - {"manifest.sig"}:
        assert made[file].read_bytes() == kept[file].read_bytes(), f"{name}/{file}"


@pytest.mark.parametrize("name", shipped_names())
def test_a_shipped_bundle_is_small_and_so_is_each_of_its_graphs(name):
    sizes = {path.name: path.stat().st_size for path in (SHIPPED_IN / name).iterdir()}
    assert sum(sizes.values()) < 512 * 1024
    graphs = [size for file, size in sizes.items() if file.endswith(".onnx")]
    assert max(graphs, default=0) < 64 * 1024


def test_the_release_key_is_made_anew_and_forgotten(tmp_path):
    write(tmp_path, ["load-mlp"])
    names = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert not any(name.endswith(".key") for name in names)
    assert (tmp_path / "release.pub").read_text() != (SHIPPED_IN / "release.pub").read_text()
