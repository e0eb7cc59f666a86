"""The shipped bundles are what the exporter writes today, to the byte."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnx")

from edge_sdk.bundle import shipped_folder, shipped_names
from tools.bundles import write

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def test_exporting_again_gives_the_shipped_files(tmp_path):
    write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == shipped_names()
    for name in shipped_names():
        for file in ("manifest.json", "gradient.onnx", "forecast.onnx", "initial.f32"):
            made, kept = (root / name / file for root in (tmp_path, shipped_folder()))
            assert made.read_bytes() == kept.read_bytes(), f"{name}/{file}"


def test_the_release_key_is_made_anew_and_forgotten(tmp_path):
    write(tmp_path)
    names = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert not any(name.endswith(".key") for name in names)
    assert (tmp_path / "release.pub").read_text() != (shipped_folder() / "release.pub").read_text()
