"""A bundle is used only if every byte is what a trusted key signed, and it computes right here."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from edge_sdk.bundle import (
    Bundle,
    BundleError,
    TrustedKeys,
    load_installed,
    shipped_folder,
    shipped_names,
)
from edge_sdk.protocol.contract.archive import pack, seal, unpack
from edge_sdk.protocol.contract.manifest import Golden, Manifest
from edge_sdk.protocol.keys import from_seed
from edge_sdk.training import bundle_install
from edge_sdk.training.bundle_install import install
from tests.edge_sdk.runtime import onnx_bytes

KEY, OTHER = from_seed(bytes(32)), from_seed(bytes([1]) * 32)
TRUST = TrustedKeys((KEY.public,))
FILES = tuple(sorted(path.name for path in (shipped_folder() / "load-mlp").iterdir()))


def signed(key=KEY, **changes):
    """The files of a shipped bundle, its manifest changed and signed with a key of ours."""
    source = shipped_folder() / "load-mlp"
    contents = {name: (source / name).read_bytes() for name in FILES}
    manifest = replace(Manifest.parse(contents["manifest.json"]), **changes)
    raw = manifest.canonical()
    return contents | {"manifest.json": raw, "manifest.sig": seal(key, raw)}


def written(folder, contents):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.extension] if "analytic" in name else [])
        for name in shipped_names()
        if "-day" not in name  # a profile is solved; its gradient is 0
    ],
)
def test_shipped_bundles_open_and_train(name):
    bundle = Bundle.open(name, trust=TrustedKeys())
    if bundle.manifest.analytic is None:
        assert bundle.graphs._loaded.keys() == {"forecast"}  # the canary; no other session is built
    window, width = bundle.manifest.window, len(bundle.manifest.features)
    x = np.full((2, window.lookback, width), 0.5, np.float32)
    y = np.zeros((2, window.horizon), np.float32)
    y += np.float32(bundle.manifest.analytic is not None)  # coefficients of 0 forecast 0
    loss, g = bundle.gradient(p=bundle.initial, x=x, y=y)
    rate = np.float32(
        0.01 if bundle.manifest.analytic is None else 1e-5
    )  # 100 rows of moduli near 1
    (lower, _) = bundle.gradient(p=bundle.initial - rate * g, x=x, y=y)
    assert lower < loss
    assert bundle.forecast(p=bundle.initial, x=x)[0].shape == (2, *bundle.manifest.forecast_shape)
    assert bundle.spec.size == bundle.initial.size


def test_shipped_names_lists_the_shipped_bundles():
    nets = [f"{net}-{horizon}" for net in ("branches", "gru", "lstm", "mlp") for horizon in (1, 24)]
    weeks = ["cells-week-1", "cells-week-24"]
    cells = sorted([*(f"cells-{net}" for net in nets), "cells-day", *weeks])
    chargers = ["chargers-1", "chargers-6", "chargers-day", "chargers-week-1", "chargers-week-6"]
    loads = [
        "load-analytic",
        "load-analytic-weather-ahead",
        "load-day-1",
        "load-day-quarter-1",
        "load-gru",
        "load-lstm",
        "load-lstm-week",
        "load-mlp",
    ]
    loads += [
        "load-quarter-hour-1",
        "load-week-1",
        "load-week-weather-1",
        "load-week-weather-ahead-1",
    ]
    assert shipped_names() == [*cells, *chargers, *loads]


@pytest.mark.extension
def test_a_bundle_in_closed_form_opens_and_forecasts_without_an_engine():
    code = (
        "import sys, numpy as np; sys.modules['onnxruntime'] = None\n"
        "from edge_sdk.bundle import Bundle, TrustedKeys\n"
        "bundle = Bundle.open('load-analytic', trust=TrustedKeys())\n"
        "x = np.array([bundle.manifest.golden.x], np.float32)\n"
        "print(bundle.forecast(p=bundle.initial, x=x)[0].shape)\n"
        "print('edge_sdk.extensions.numpy_engine.numpy_engine' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split("\n")[:2] == ["(1, 1, 3)", "False"]


@pytest.mark.extension
def test_a_bundle_in_closed_form_whose_design_row_differs_is_refused(tmp_path):
    copy = shutil.copytree(shipped_folder() / "load-analytic", tmp_path / "copy")
    manifest = Manifest.parse((copy / "manifest.json").read_bytes())
    section = manifest.analytic
    wrong = replace(manifest, analytic=replace(section, design=(9.0, *section.design[1:])))
    (copy / "manifest.json").write_bytes(wrong.canonical())
    (copy / "manifest.sig").write_bytes(seal(KEY, wrong.canonical()))
    with pytest.raises(BundleError, match="golden design row"):
        Bundle.open(copy, trust=TRUST)


@pytest.mark.extension
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"target": {"form": "level"}}, "learns a change"),
        ({"window": {"lookback": 24}}, "read 170 rows back"),
        ({"layers": (("w", (448,)),)}, "layers must be"),
    ],
)
def test_a_bundle_in_closed_form_that_contradicts_itself_is_refused(tmp_path, changes, why):
    copy = shutil.copytree(shipped_folder() / "load-analytic", tmp_path / "copy")
    table = json.loads((copy / "manifest.json").read_bytes())
    for key, value in changes.items():
        table[key] = {**table[key], **value} if isinstance(value, dict) else value
    if "window" in changes:
        table["golden"]["x"] = table["golden"]["x"][-24:]
    raw = json.dumps(table, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
    (copy / "manifest.json").write_bytes(raw)
    (copy / "manifest.sig").write_bytes(seal(KEY, raw))
    with pytest.raises(BundleError, match=why):
        Bundle.open(copy, trust=TRUST)


def test_a_folder_opens_only_with_a_trusted_key(tmp_path):
    folder = written(tmp_path / "b", signed())
    assert Bundle.open(folder, trust=TRUST).manifest.name == "load-mlp"
    for trust in (TrustedKeys(), TrustedKeys((OTHER.public,))):
        with pytest.raises(BundleError, match="no key that this device trusts"):
            Bundle.open(folder, trust=trust)


def test_the_release_key_is_trusted_for_shipped_names_only(tmp_path):
    copy = shutil.copytree(shipped_folder() / "load-mlp", tmp_path / "copy")
    with pytest.raises(BundleError, match="no key"):
        Bundle.open(copy, trust=TRUST)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("place", [0, -1])
def test_one_changed_byte_in_any_file_is_refused(tmp_path, name, place):
    contents = signed()
    damaged = bytearray(contents[name])
    damaged[place] ^= 1
    folder = written(tmp_path / "b", contents | {name: bytes(damaged)})
    with pytest.raises(BundleError):
        Bundle.open(folder, trust=TRUST)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_refused(tmp_path, name):
    contents = signed()
    del contents[name]
    with pytest.raises(BundleError):
        Bundle.open(written(tmp_path / "b", contents), trust=TRUST)


def test_an_extra_file_is_refused(tmp_path):
    folder = written(tmp_path / "b", signed() | {"extra.onnx": b"x"})
    with pytest.raises(BundleError, match="not those that the manifest lists"):
        Bundle.open(folder, trust=TRUST)


def test_an_edited_manifest_is_refused_even_if_readable(tmp_path):
    contents = signed()
    raw = contents["manifest.json"].replace(b'"rate":0.001', b'"rate":1.0')
    assert raw != contents["manifest.json"]
    folder = written(tmp_path / "b", contents | {"manifest.json": raw})
    with pytest.raises(BundleError, match="no key"):
        Bundle.open(folder, trust=TRUST)


def test_a_vector_of_another_length_is_refused(tmp_path):
    contents = signed()
    short = contents["initial.f32"][:-4]
    files = json.loads(contents["manifest.json"])["files"]
    files["initial.f32"] = hashlib.sha256(short).hexdigest()
    folder = written(tmp_path / "b", signed(files=files) | {"initial.f32": short})
    with pytest.raises(BundleError, match="the layout needs 33668"):
        Bundle.open(folder, trust=TRUST)


def test_a_vector_that_is_not_finite_is_refused(tmp_path):
    contents = signed()
    vector = np.frombuffer(contents["initial.f32"], "<f4").copy()
    vector[7] = np.inf
    files = json.loads(contents["manifest.json"])["files"]
    files["initial.f32"] = hashlib.sha256(vector.tobytes()).hexdigest()
    changed = signed(files=files) | {"initial.f32": vector.tobytes()}
    with pytest.raises(BundleError, match="not finite"):
        Bundle.open(written(tmp_path / "b", changed), trust=TRUST)


def test_a_different_golden_forecast_refuses_the_bundle(tmp_path):
    golden = Manifest.parse(signed()["manifest.json"]).golden
    wrong = Golden(golden.x, (golden.yhat[0] + 1e-3,))
    folder = written(tmp_path / "b", signed(golden=wrong))
    with pytest.raises(BundleError, match="golden forecast") as refused:
        Bundle.open(folder, trust=TRUST)
    assert refused.value.hint


def test_a_bundle_for_a_newer_sdk_is_refused(tmp_path):
    folder = written(tmp_path / "b", signed(min_sdk="99.0.0"))
    with pytest.raises(BundleError, match=r"needs SDK 99\.0\.0"):
        Bundle.open(folder, trust=TRUST)


def test_a_newer_manifest_with_unknown_fields_is_refused_by_its_sdk(tmp_path):
    files = signed(min_sdk="0.2.0")
    newer = json.dumps(
        json.loads(files["manifest.json"]) | {"colour": "red"},
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
    ).encode()
    files |= {"manifest.json": newer, "manifest.sig": seal(KEY, newer)}
    with pytest.raises(BundleError, match=r"needs SDK 0\.2\.0 or newer"):
        Bundle.open(written(tmp_path / "b", files), trust=TRUST)
    for least in ("0.1.0", "none", None):  # of this SDK's own, an unknown field is an error
        raw = newer.replace(b'"0.2.0"', json.dumps(least).encode())
        files |= {"manifest.json": raw, "manifest.sig": seal(KEY, raw)}
        with pytest.raises(BundleError, match=r"colour|min_sdk"):
            Bundle.open(written(tmp_path / f"b{least}", files), trust=TRUST)


def test_an_unknown_name_lists_the_shipped_ones():
    with pytest.raises(BundleError, match="neither shipped") as refused:
        Bundle.open("load-lsmt", trust=TrustedKeys())
    assert "load-lstm" in refused.value.hint


def test_an_installed_archive_opens_again(tmp_path):
    data = pack(signed())
    bundle = install(data, tmp_path / "in", trust=TRUST)
    assert bundle.digest == hashlib.sha256(data).digest()
    again = load_installed(tmp_path / "in", bundle.digest, trust=TRUST)
    assert again.manifest == bundle.manifest
    assert install(data, tmp_path / "in", trust=TRUST).digest == bundle.digest  # twice is once


def test_an_older_version_and_a_changed_version_are_refused(tmp_path):
    into = tmp_path / "in"
    install(pack(signed(version=5)), into, trust=TRUST)
    with pytest.raises(BundleError, match="version 5 is installed"):
        install(pack(signed(version=4)), into, trust=TRUST)
    with pytest.raises(BundleError, match="version 5 is installed"):
        install(pack(signed(version=5, shared=())), into, trust=TRUST)
    assert install(pack(signed(version=6)), into, trust=TRUST).manifest.version == 6
    assert install(pack(signed(name="another")), into, trust=TRUST).manifest.version == 1


def test_the_previous_bundle_is_kept_and_older_ones_deleted(tmp_path):
    into = tmp_path / "in"
    digests = []
    for version in (1, 2, 3):
        digests.append(install(pack(signed(version=version)), into, trust=TRUST).digest)
        os.utime(into / digests[-1].hex(), (version, version))
    assert load_installed(into, digests[1], trust=TRUST).manifest.version == 2
    with pytest.raises(BundleError, match="not installed"):
        load_installed(into, digests[0], trust=TRUST)


def test_a_refused_archive_leaves_the_folder_unchanged(tmp_path):
    into = tmp_path / "in"
    install(pack(signed()), into, trust=TRUST)
    before = sorted(path.name for path in into.rglob("*"))
    for bad in (b"", b"PK", pack(signed(OTHER, version=2)), pack(signed(version=2)) + b"x"):
        with pytest.raises(BundleError):
            install(bad, into, trust=TRUST)
    with pytest.raises(BundleError, match="not the announced one"):
        install(pack(signed(version=2)), into, trust=TRUST, digest=bytes(32))
    assert sorted(path.name for path in into.rglob("*")) == before


def test_a_power_cut_before_the_rename_keeps_the_old_bundle(tmp_path, monkeypatch):
    into = tmp_path / "in"
    old = install(pack(signed()), into, trust=TRUST)

    def cut(_folder):
        raise OSError(5, "power")

    monkeypatch.setattr(bundle_install, "_sync", cut)
    with pytest.raises(BundleError, match="cannot install"):
        install(pack(signed(version=2)), into, trust=TRUST)
    monkeypatch.undo()
    assert load_installed(into, old.digest, trust=TRUST).manifest.version == 1
    new = install(pack(signed(version=2)), into, trust=TRUST)
    assert load_installed(into, new.digest, trust=TRUST).manifest.version == 2
    assert not list(into.glob(".new-*"))


def test_a_damaged_installed_bundle_is_refused(tmp_path):
    bundle = install(pack(signed()), tmp_path, trust=TRUST)
    (tmp_path / bundle.digest.hex() / "gradient.onnx").write_bytes(b"x")
    with pytest.raises(BundleError, match="not the file that was signed"):
        load_installed(tmp_path, bundle.digest, trust=TRUST)


@pytest.mark.parametrize("name", ["gradient", "hvp"])
def test_a_signed_graph_with_a_loop_is_refused_on_opening(tmp_path, name):
    """No method may ask for it for weeks; then a session would be built, and hang."""
    contents = signed()
    looped = onnx_bytes.looped()
    digests = json.loads(contents["manifest.json"])["files"]
    files = digests | {f"{name}.onnx": hashlib.sha256(looped).hexdigest()}
    contents = signed(files=files) | {f"{name}.onnx": looped}
    with pytest.raises(BundleError, match=f"graph '{name}': cannot load .* graphs are not support"):
        install(pack(contents), tmp_path / "in", trust=TRUST)
    with pytest.raises(BundleError, match="graphs are not supported"):
        Bundle.open(written(tmp_path / "b", contents), trust=TRUST)
    assert not list((tmp_path / "in").glob("*"))


def test_archives_are_reproducible_and_can_be_read():
    contents = signed()
    assert unpack(pack(contents)) == contents
    assert pack(contents) == pack(dict(reversed(contents.items())))
