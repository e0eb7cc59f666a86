"""A manifest is strict, canonical, and does not contradict itself."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from edge_sdk.bundle import shipped_folder, shipped_names
from edge_sdk.protocol.contract.manifest import Feature, Loss, Manifest, ManifestError, Target

RAW = (shipped_folder() / "load-lstm" / "manifest.json").read_bytes()


def edited(**changes):
    content = json.loads(RAW)
    for path, value in changes.items():
        at = content
        *steps, last = path.split("__")
        for step in steps:
            at = at[int(step) if isinstance(at, list) else step]
        if value is None:
            del at[last]
        else:
            at[int(last) if isinstance(at, list) else last] = value
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def has_extension(name):
    return "analytic" in json.loads((shipped_folder() / name / "manifest.json").read_bytes())


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.extension] if has_extension(name) else [])
        for name in shipped_names()
    ],
)
def test_shipped_manifests_read_back_to_their_own_bytes(name):
    raw = (shipped_folder() / name / "manifest.json").read_bytes()
    manifest = Manifest.parse(raw)
    assert manifest.canonical() == raw
    assert manifest.name == name


def test_the_paper_model_has_the_papers_counts():
    manifest = Manifest.parse(RAW)
    assert manifest.size == 42_181
    assert manifest.spec().shared_size == 5_760
    assert (
        manifest.spec(
            ("lstm.weight_ih_l0", "lstm.weight_hh_l0", "lstm.bias_ih_l0", "lstm.bias_hh_l0")
        ).shared_size
        == 2_400
    )
    assert manifest.spec(()).shared_size == 0
    assert manifest.spec(("",)).shared_size == 42_181


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"versoin": 2}, "did you mean 'version'"),
        ({"name": None}, "name: missing"),
        ({"name": "Load"}, "name"),
        ({"version": 0}, "version"),
        ({"version": True}, "expected int"),
        ({"format": 2}, "format"),
        ({"min_sdk": "0.1"}, "min_sdk"),
        ({"window__lookback": 0}, "lookback"),
        ({"window__lookback": 13}, "golden.x must be 13 rows"),
        ({"features__0__kind": "static"}, "exactly one feature must be the target"),
        ({"features__1__name": "load"}, "names must differ"),
        ({"features__1__high": 0.0}, "high must exceed low"),
        ({"features__1__what": None}, "needs 'what'"),
        ({"features__3__stream": None}, "needs 'stream'"),
        ({"loss__delta": 1.0}, "delta is required for the loss huber"),
        ({"loss__name": "huber"}, "delta is required for the loss huber"),
        ({"loss__name": "pinball"}, "levels are required for the loss pinball"),
        ({"loss__levels": [0.1, 0.5, 0.9]}, "levels are required for the loss pinball"),
        ({"loss": {"name": "pinball", "levels": [0.1, 0.5, 0.9]}}, "output quantiles requires"),
        ({"loss": {"name": "pinball", "levels": [0.1, 0.5]}}, "levels"),
        ({"loss": {"name": "pinball", "levels": [0.1, 0.9, 0.5]}}, "levels must rise"),
        ({"loss": {"name": "pinball", "levels": [0.1, 0.4, 0.9]}}, "the median 0.5"),
        ({"loss": {"name": "pinball", "levels": [0.5, 0.8, 0.9]}}, "on either side"),
        ({"loss": {"name": "pinball", "levels": [0.1, 0.5, 1.0]}}, "levels"),
        ({"target__output": "quantiles"}, "output quantiles requires"),
        ({"training__optimiser": "lbfgs"}, "known: adam, sgd"),
        ({"golden__yhat": [0.0, 1.0]}, "golden.yhat must have 1"),
        ({"graphs__gradient__file": "../gradient.onnx"}, "file"),
        ({"files__gradient.onnx": "00"}, "gradient.onnx"),
        ({"target__scale": "fixed"}, "fixed scale"),
        ({"graphs__forecast": None}, "'forecast' is missing"),
        ({"graphs__gradient__inputs": ["p", "y", "x"]}, "graph 'gradient' must take and give"),
    ],
)
def test_an_invalid_manifest_is_refused_with_the_name_of_the_field(changes, says):
    with pytest.raises(ManifestError, match="manifest") as refused:
        Manifest.parse(edited(**changes))
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"format":NaN}',
        b"[" * 100_000,
        RAW + b"\n",
        json.dumps(json.loads(RAW), sort_keys=True).encode(),
        RAW.replace(b'"version":1', b'"version":1.0'),
        RAW.replace(b'{"features"', b'{"features":[],"features"'),
    ],
)
def test_json_that_is_not_canonical_is_refused(raw):
    with pytest.raises(ManifestError):
        Manifest.parse(raw)


def test_a_repeated_layer_and_an_unknown_prefix_are_refused():
    manifest = Manifest.parse(RAW)
    with pytest.raises(ManifestError, match="appears twice"):
        replace(manifest, layers=(("w", (1,)), ("w", (2,)))).spec(())
    with pytest.raises(ManifestError, match="matches no layer"):
        manifest.spec(("lsmt.",))


def test_parts_check_themselves():
    with pytest.raises(ValueError, match="lag_steps"):
        Feature("yesterday", "lag", "kWh")
    with pytest.raises(ValueError, match="low < high"):
        Target("load", "kWh", "level", "fixed", low=1.0, high=1.0)
    assert Loss("huber", 0.5).delta == 0.5


def test_quantiles_need_a_golden_value_for_every_level():
    quantiles = {
        "loss": {"name": "pinball", "levels": [0.1, 0.5, 0.9]},
        "target__output": "quantiles",
    }
    with pytest.raises(ManifestError, match="yhat must have 3 values"):
        Manifest.parse(edited(**quantiles))
    manifest = Manifest.parse(edited(**quantiles, golden__yhat=[0.0, 0.5, 1.0]))
    assert manifest.forecast_shape == (1, 3)
    assert Manifest.parse(manifest.canonical()) == manifest
    assert Manifest.parse(RAW).forecast_shape == (1,)


def test_the_digest_covers_every_field():
    manifest = Manifest.parse(RAW)
    assert replace(manifest, version=2).digest != manifest.digest
    assert len(manifest.digest) == 32


def masked(of, lacks="temperature"):
    content = json.loads(RAW)
    mask = {"kind": "mask", "name": f"{lacks}-known", "unit": "1", "low": 0.0, "high": 1.0}
    content["features"].append(mask | ({} if of is None else {"of": of}))
    for row in content["golden"]["x"]:
        row.append(1.0)
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def test_a_mask_makes_the_feature_that_it_names_optional():
    manifest = Manifest.parse(masked("temperature"))
    assert manifest.optional == {"temperature"}
    assert manifest.required_streams == ("elec.import.energy", "weather.wind_speed")
    assert Manifest.parse(manifest.canonical()) == manifest
    plain = Manifest.parse(RAW)
    assert plain.optional == frozenset()
    assert plain.required_streams[1:] == ("weather.temperature", "weather.wind_speed")


@pytest.mark.parametrize(
    ("of", "says"),
    [
        (None, "a mask feature needs 'of'"),
        ("load", "'load', which is no stream, lag or static feature"),
        ("day-of-week", "'day-of-week', which is no stream"),
        ("temperature-known", "'temperature-known', which is no stream"),
        ("sunshine", "'sunshine', which is no stream"),
    ],
)
def test_a_mask_of_nothing_optional_is_refused(of, says):
    with pytest.raises(ManifestError) as refused:
        Manifest.parse(masked(of))
    assert says in str(refused.value)


def test_a_feature_has_at_most_one_mask():
    content = json.loads(masked("temperature"))
    content["features"].append(content["features"][-1] | {"name": "again"})
    for row in content["golden"]["x"]:
        row.append(1.0)
    raw = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    with pytest.raises(ManifestError, match="two masks"):
        Manifest.parse(raw)
