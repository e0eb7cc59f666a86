"""Exported graph models: the shipped files, run without torch, against numpy and against torch."""

from __future__ import annotations

import io
import zipfile
from importlib.resources import files

import numpy as np
import pytest

from aggregator.extensions.papers.graph import factory
from aggregator.extensions.papers.graph.exported_net import (
    FORWARD,
    ExportedNet,
    ExportedNetError,
    HostedGraphModel,
    NetOptions,
)
from aggregator.extensions.papers.graph.factory import GraphSection, bind
from edge_sdk.app.schema import SchemaError
from tests.pairs.pfgl_block import PfglBlock

SHIPPED = sorted(
    one.name.removesuffix(".zip")
    for one in (files("aggregator.extensions.papers.graph") / "shipped").iterdir()
)
RING = np.eye(4, k=1) + np.eye(4, k=-1) + np.eye(4, k=3) + np.eye(4, k=-3)
F, L, B = 3, 4, 2


def drawn(seed, *shape):
    return np.random.Generator(np.random.Philox(seed)).normal(size=shape)


def hosted(name, adjacent=RING):
    data = (files("aggregator.extensions.papers.graph") / "shipped" / f"{name}.zip").read_bytes()
    return HostedGraphModel(ExportedNet.read(data), adjacent, F, L, block=8)


def test_every_file_has_the_name_of_its_options():
    assert {"pfgl-2-3", "pfgl-2-3-residual", "conv2d-2", "graphnet-2"} <= set(SHIPPED)
    assert [hosted(name).net.options.name for name in SHIPPED] == SHIPPED


def test_the_shipped_net_is_two_blocks_of_pfgl_in_numpy():
    """Forward and gradients, against blocks whose gradients come from the complex step."""
    model, block, here = hosted("pfgl-2-3"), PfglBlock(RING, F, L), np.ones(4, bool)
    first, second = block.init(1), block.init(2)
    p, h, gz = np.concatenate([first, second]), drawn(3, B, 4, F, L), drawn(4, B, 4, F, L)
    between = block.forward(first, h, here)
    z = block.forward(second, between, here)
    np.testing.assert_allclose(model.forward(p, h, here), z, atol=1e-4 * np.abs(z).max())
    back, of_second = block.pullback(second, between, here, gz)
    gh, of_first = block.pullback(first, h, here, back)
    found_h, found_p = model.pullback(p, h, here, gz)
    wanted = np.concatenate([of_first, of_second])
    np.testing.assert_allclose(found_h, gh, atol=1e-4 * np.abs(gh).max())
    np.testing.assert_allclose(found_p, wanted, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("name", SHIPPED)
def test_it_pulls_back_what_finite_differences_find(name):
    model, present = hosted(name), np.array([True, True, False, True])
    p, h, gz = model.init(1), drawn(5, B, 4, F, L), drawn(6, B, 4, F, L)
    h[:, 2] = np.nan  # what an absent slot holds is never read
    gh, gp = model.pullback(p, h, present, gz)
    assert not gh[:, 2].any()
    assert not model.forward(p, h, present)[:, 2].any()
    gz[:, 2] = 0.0
    for of_p, of_h in ((drawn(7, *p.shape), 0.0), (0.0, drawn(8, *h.shape))):
        ahead, behind = (
            model.forward(p + e * of_p, h + e * of_h, present).astype(np.float64)
            for e in (1e-3, -1e-3)
        )
        wanted = ((ahead - behind) * gz).sum() / 2e-3
        slope = (gp * of_p).sum() + np.nansum(gh * of_h)
        assert slope == pytest.approx(wanted, rel=0.05, abs=0.05)


@pytest.mark.parametrize("name", SHIPPED)
def test_blocks_of_examples_change_no_number(name):
    model, here = hosted(name), np.ones(4, bool)
    p, h, gz = model.init(2), drawn(9, 5, 4, F, L), drawn(10, 5, 4, F, L)
    small = HostedGraphModel(model.net, RING, F, L, block=2)
    np.testing.assert_allclose(small.forward(p, h, here), model.forward(p, h, here), atol=1e-5)
    for one, other in zip(
        small.pullback(p, h, here, gz), model.pullback(p, h, here, gz), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-4 * max(np.abs(other).max(), 1.0))


def test_the_engine_in_numpy_has_the_same_results(monkeypatch):
    here, h, gz = np.ones(4, bool), drawn(11, B, 4, F, L), drawn(12, B, 4, F, L)
    one = hosted("pfgl-2-3-residual")
    p = one.init(4)
    wanted = [one.forward(p, h, here), *one.pullback(p, h, here, gz)]
    monkeypatch.setenv("GRIDFED_ENGINE", "numpy")
    other = hosted("pfgl-2-3-residual")
    found = [other.forward(p, h, here), *other.pullback(p, h, here, gz)]
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3 * np.abs(b).max())


def test_without_a_station_there_is_nothing():
    model, nobody = hosted("pfgl-2-3"), np.zeros(4, bool)
    h = drawn(1, B, 4, F, L)
    assert not model.forward(model.init(0), h, nobody).any()
    assert not any(one.any() for one in model.pullback(model.init(0), h, nobody, h))


def test_a_configuration_uses_the_shipped_file_without_torch(monkeypatch):
    monkeypatch.setattr(factory, "find_spec", lambda _name: None)
    model = bind(GraphSection(capacity=4), (F, L)).model
    assert isinstance(model, HostedGraphModel)
    with pytest.raises(SchemaError, match=r"run\.graph\.file.*pfgl-3-3.*export-graph.*torch"):
        bind(GraphSection(capacity=4, blocks=3), (F, L))


def test_a_file_of_another_net_is_refused_with_both_names(tmp_path):
    (tmp_path / "net.zip").write_bytes(NetOptions("conv2d").shipped)
    with pytest.raises(SchemaError, match=r"run\.graph\.file.*pfgl-2-3.*conv2d-2"):
        bind(GraphSection(capacity=4, file="net.zip"), (F, L), tmp_path)


@pytest.mark.parametrize("data", [b"", b"PK", NetOptions().shipped[:500]])
def test_a_damaged_file_is_refused(data, tmp_path):
    with pytest.raises(ExportedNetError, match="not an exported graph model"):
        ExportedNet.read(data)
    (tmp_path / "net.zip").write_bytes(data)
    with pytest.raises(SchemaError, match=r"run\.graph\.file"):
        bind(GraphSection(capacity=4, file="net.zip"), (F, L), tmp_path)


def test_an_archive_without_a_layout_is_refused():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(FORWARD, b"")
    with pytest.raises(ExportedNetError):
        ExportedNet.read(out.getvalue())


def test_torch_and_a_file_exclude_each_other():
    with pytest.raises(ValueError, match="remove file"):
        GraphSection(file="net.zip", engine="torch")


@pytest.mark.torch
@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_file_has_torchs_results(name):
    pytest.importorskip("torch")
    pytest.importorskip("onnx")
    from aggregator.extensions.papers.graph.nets.net_export import TOLERANCE, largest_error  # noqa: PLC0415 - it imports torch

    data = hosted(name).net.options.shipped
    assert data is not None
    assert largest_error(data) < TOLERANCE


@pytest.mark.torch
@pytest.mark.slow
def test_a_net_of_ones_own_is_exported_and_used(tmp_path, capsys):
    pytest.importorskip("torch")
    pytest.importorskip("onnx")
    from aggregator.commands.main import main  # noqa: PLC0415 - loads the commands

    out = tmp_path / "one.zip"
    assert main(["export-graph", str(out), "--blocks", "1", "--order", "2"]) == 0
    assert "pfgl-1-2" in capsys.readouterr().out
    section = GraphSection(capacity=4, blocks=1, order=2, file=out.name)
    model = bind(section, (F, L), tmp_path).model
    whole = bind(GraphSection(capacity=4, blocks=1, order=2, engine="torch"), (F, L)).model
    p, h = model.init(3), drawn(2, B, 4, F, L)
    np.testing.assert_allclose(
        model.forward(p, h, np.ones(4, bool)), whole.forward(p, h, np.ones(4, bool)), atol=1e-4
    )
