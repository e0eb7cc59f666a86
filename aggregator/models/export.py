"""Turn a torch module into a signed bundle, or say why not."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from aggregator.models.catalogue import MODELS
from aggregator.models.check import Engine, check_forecast, check_gradient, reference_engine
from aggregator.models.errors import ExportError
from aggregator.models.recipe import Recipe
from aggregator.models.trace import Traced
from edge_sdk.wire.archive import INITIAL, MANIFEST, SIGNATURE, SIZE_LIMIT, pack, seal
from edge_sdk.wire.keys import Signer, load_signing_key
from edge_sdk.wire.manifest import FORECAST, GRADIENT, Golden, GraphFile, Manifest, ManifestError

MIN_SDK = "0.1.0"
SEED = 2022
"""Of initial parameters, so that an export repeats to the byte."""

_GRAPHS = {
    GRADIENT: GraphFile("gradient.onnx", ("p", "x", "y"), ("loss", "g")),
    FORECAST: GraphFile("forecast.onnx", ("p", "x"), ("yhat",)),
}


def export(
    module: nn.Module,
    recipe: Recipe,
    *,
    name: str,
    version: int,
    signer: Signer,
    out: Path,
    engine: Engine = reference_engine,
) -> Path:
    """Write a module as a bundle's folder.

    Args:
        module: Takes ``[B, lookback, channels]``, returns ``[B, horizon]``; its present parameters
            become the first vector. It is not changed.
        recipe: How it is fed and trained.
        name: Of the bundle: lower-case letters, digits and hyphens.
        version: Must rise with every release of this name.
        signer: The fleet's root key.
        out: Folder to write; its bundle files are replaced.
        engine: What runs the graphs for the comparison with torch.

    Returns:
        ``out``.

    Raises:
        ExportError: An operator that cannot be written, a graph that differs from torch, buffers
            that training would change, or parameters that no shared prefix can mean.
    """
    traced = Traced(module, recipe.sample, recipe.window.horizon)
    contents = _graphs(traced, recipe, engine)
    contents[INITIAL] = traced.initial.numpy().astype("<f4").tobytes()
    try:
        manifest = _manifest(traced, recipe, name, version, contents)
        manifest.spec()
    except (ValueError, ManifestError) as error:
        raise ExportError(str(error)) from error
    raw = manifest.canonical()
    contents |= {MANIFEST: raw, SIGNATURE: seal(signer, raw)}
    if (size := len(pack(contents))) > SIZE_LIMIT:
        raise ExportError(f"the bundle has {size} bytes; at most {SIZE_LIMIT} are sent to devices")
    out.mkdir(parents=True, exist_ok=True)
    for file, data in contents.items():
        (out / file).write_bytes(data)
    return out


def export_command(
    model: str,
    out: Path,
    *,
    key: Path,
    version: int = 1,
    name: str | None = None,
    like: str = "load-lstm-week",
    shared: tuple[str, ...] | None = None,
    engine: Engine = reference_engine,
) -> Path:
    """Export by words, as a command line gives them.

    Args:
        model: A name of the catalogue, ``package.module:factory``, or ``file.py:Class``.
        out: Folder to write.
        key: The root key's file.
        version: Of the bundle.
        name: Of the bundle; the catalogue's, or the folder's own.
        like: Catalogue entry whose recipe a factory without an attribute ``recipe`` takes.
        shared: Prefixes that replace the recipe's.
        engine: What runs the graphs for the comparison with torch.

    Raises:
        ExportError: Unknown model, or whatever ``export`` refuses.
        KeyFileError: The key cannot be read.
    """
    module, recipe = make(model, like)
    if shared is not None:
        recipe = replace(recipe, shared=shared)
    called = name or (model if model in MODELS else out.resolve().name)
    signer = load_signing_key(key)
    return export(
        module, recipe, name=called, version=version, signer=signer, out=out, engine=engine
    )


def make(model: str, like: str = "load-lstm-week") -> tuple[nn.Module, Recipe]:
    """Make a module with parameters that repeat, and find its recipe.

    Raises:
        ExportError: Unknown name, file or factory, or a factory that returns no module.
    """
    factory: Any
    if model in MODELS:
        factory, recipe = MODELS[model]
    else:
        home, _, attribute = model.rpartition(":")
        if not home or like not in MODELS:
            raise ExportError(
                f"unknown model {model!r}: give one of {', '.join(MODELS)}, "
                "package.module:factory, or file.py:Class"
            )
        factory = getattr(_loaded(home), attribute, None)
        if not callable(factory):
            raise ExportError(f"{home} has no factory {attribute!r}")
        recipe = getattr(factory, "recipe", MODELS[like][1])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        module = factory()
    if not isinstance(module, nn.Module):
        raise ExportError(f"{model} returned {type(module).__name__}, not a torch module")
    return module, recipe


def _loaded(home: str) -> ModuleType:
    try:
        if not home.endswith(".py"):
            return importlib.import_module(home)
        spec = importlib.util.spec_from_file_location(Path(home).stem, home)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    except (ImportError, OSError) as error:
        raise ExportError(f"{home} cannot be imported: {error}") from error
    return module


def _graphs(traced: Traced, recipe: Recipe, engine: Engine) -> dict[str, bytes]:
    gradient = traced.gradient_graph(recipe.loss).SerializeToString(deterministic=True)
    forecast = traced.forecast_graph().SerializeToString(deterministic=True)
    check_gradient(traced, recipe.loss, engine(gradient))
    check_forecast(traced, engine(forecast))
    return {_GRAPHS[GRADIENT].file: gradient, _GRAPHS[FORECAST].file: forecast}


def _manifest(
    traced: Traced, recipe: Recipe, name: str, version: int, contents: Mapping[str, bytes]
) -> Manifest:
    digests = {file: hashlib.sha256(data).hexdigest() for file, data in contents.items()}
    written = Manifest(
        name=name,
        version=version,
        min_sdk=MIN_SDK,
        layers=tuple((layer, tuple(shape)) for layer, shape in traced.layers),
        shared=recipe.shared,
        window=recipe.window,
        features=recipe.features,
        target=recipe.target,
        loss=recipe.loss,
        training=recipe.training,
        graphs=_GRAPHS,
        golden=_golden(traced),
        files=digests,
    )
    return Manifest.parse(written.canonical())  # as strict with ourselves as with anybody


def _golden(traced: Traced) -> Golden:
    """Draw one window, rounded so that it reads well, and ask torch for its forecast."""
    x = np.random.Generator(np.random.Philox(SEED)).random(traced.sample).round(4)
    with torch.no_grad():
        yhat = traced.predict(traced.initial, torch.tensor(x[None], dtype=torch.float32))[0]
    rows = tuple(tuple(float(value) for value in row) for row in x)
    return Golden(rows, tuple(round(float(value), 6) for value in yhat))
