"""The shipped bundles are what the exporter writes today, to the byte."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnx")

from edge_sdk.bundle import shipped_folder, shipped_names
from tools.bundles import write

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(900)]


def test_exporting_again_gives_the_shipped_files(tmp_path):
    write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == shipped_names()
    for name in shipped_names():
        made, kept = ({p.name: p for p in (root / name).iterdir()} for root in roots(tmp_path))
        assert made.keys() == kept.keys()
        for file in made.keys() - {"manifest.sig"}:
            assert made[file].read_bytes() == kept[file].read_bytes(), f"{name}/{file}"


def roots(made):
    return made, shipped_folder()


@pytest.mark.parametrize("name", shipped_names())
def test_a_shipped_bundle_is_small_and_so_is_each_of_its_graphs(name):
    sizes = {path.name: path.stat().st_size for path in (shipped_folder() / name).iterdir()}
    assert sum(sizes.values()) < 512 * 1024
    graphs = [size for file, size in sizes.items() if file.endswith(".onnx")]
    assert max(graphs, default=0) < 64 * 1024


def test_the_release_key_is_made_anew_and_forgotten(tmp_path):
    write(tmp_path, ["load-mlp"])
    names = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert not any(name.endswith(".key") for name in names)
    assert (tmp_path / "release.pub").read_text() != (shipped_folder() / "release.pub").read_text()
