"""Export a torch module into a signed bundle, or refuse it with the reason."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from aggregator.extensions.authoring.catalogue import MODELS
from aggregator.extensions.authoring.check import Engine, check_graph, check_paths, reference_engine
from aggregator.extensions.authoring.clipped import clipped_graph
from aggregator.extensions.authoring.export_spec import ExportError, Recipe
from aggregator.extensions.authoring.lipschitz_bound import LipschitzBoundError
from aggregator.extensions.authoring.sdk_versions import oldest_sdk
from aggregator.extensions.authoring.second_derivatives import hvp_graph, robust_graph
from aggregator.extensions.authoring.split import (
    activation,
    aided_forecast_graph,
    decode_graph,
    encode_graph,
    encode_vjp_graph,
)
from aggregator.extensions.authoring.trace import Traced
from edge_sdk.app.extensions import known_names
from edge_sdk.protocol.contract.archive import INITIAL, MANIFEST, SIGNATURE, SIZE_LIMIT, pack, seal
from edge_sdk.protocol.contract.manifest import (
    AIDED_FORECAST,
    BUNDLE_NAME,
    CLIPPED_GRADIENT,
    DECODE,
    ENCODE,
    ENCODE_VJP,
    FORECAST,
    GRADIENT,
    HVP,
    ROBUST_GRADIENT,
    SIGNATURES,
    SPLIT,
    Golden,
    GraphFile,
    Loss,
    Manifest,
    ManifestError,
)
from edge_sdk.protocol.contract.method import CONTRACTS
from edge_sdk.protocol.keys import Signer, load_signing_key

# called with the name of a graph, its number from 1, and the number of graphs
Progress = Callable[[str, int, int], None]


def no_progress(_name: str, _number: int, _of: int) -> None:
    """Report nothing."""


SEED = 2022  # seed of initial parameters, so that a repeated export is identical to the byte
ALWAYS = (GRADIENT, FORECAST)
# writer of every graph, by name; its inputs and results are those of ``SIGNATURES``
GRAPHS: Mapping[str, Callable[[Traced, Loss], onnx.ModelProto]] = MappingProxyType(
    {
        GRADIENT: lambda traced, loss: traced.gradient_graph(loss),
        FORECAST: lambda traced, _: traced.forecast_graph(),
        ROBUST_GRADIENT: robust_graph,
        CLIPPED_GRADIENT: clipped_graph,
        HVP: hvp_graph,
        ENCODE: encode_graph,
        ENCODE_VJP: encode_vjp_graph,
        DECODE: decode_graph,
        AIDED_FORECAST: aided_forecast_graph,
    }
)


def export(
    module: nn.Module,
    recipe: Recipe,
    *,
    name: str,
    version: int,
    signer: Signer,
    out: Path,
    engine: Engine = reference_engine,
    progress: Progress = no_progress,
) -> Path:
    """Write a module as a bundle's folder.

    Args:
        module: Takes ``[B, lookback, channels]``, returns ``[B, horizon]``, or with a pinball loss
            ``[B, horizon, levels]``; its present parameters become the first vector. It is not
            changed.
        name: Name of the bundle: lower-case letters, digits and hyphens.
        version: Must rise with every release of this name.
        signer: The fleet's root key.
        out: Folder to write; its bundle files are replaced.
        engine: Engine that runs the graphs for the comparison with torch.
        progress: Called with the name of a graph before it is written, and its place among all.

    Returns:
        ``out``.

    Raises:
        ExportError: A name that no bundle can have, an operator that cannot be written, a graph
            that differs from torch, buffers that training would change, or parameters that no shared prefix can name.
    """
    check_name(name)
    levels = None if recipe.loss.levels is None else len(recipe.loss.levels)
    with sdpa_kernel(SDPBackend.MATH):  # the fused kernels of attention have no second derivative
        traced = Traced(module, recipe.sample, recipe.window.horizon, levels)
        contents = _graphs(traced, recipe, engine, progress)
    contents[INITIAL] = traced.initial.numpy().astype("<f4").tobytes()
    try:
        manifest = _manifest(traced, recipe, name, version, contents)
        manifest.spec()
        check_paths(traced, manifest)
    except (ValueError, ManifestError, LipschitzBoundError) as error:
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
    graphs: tuple[str, ...] | None = None,
    methods: tuple[str, ...] = (),
    engine: Engine = reference_engine,
    progress: Progress = no_progress,
) -> Path:
    """Export a model from the arguments of a command line.

    Args:
        model: A name of the catalogue, ``package.module:factory``, or ``file.py:Class``.
        key: File of the root key.
        name: Name of the bundle; left out: the catalogue's, or the folder's own.
        like: Catalogue entry whose recipe is used for a factory without an attribute ``recipe``.
        shared: Prefixes that replace the recipe's.
        graphs: Graphs that replace the recipe's; ``gradient`` and ``forecast`` are always written.
        methods: Methods whose contracts' graphs are added.
        engine: Engine that runs the graphs for the comparison with torch.
        progress: As for ``export``.
    """
    called = name or (model if model in MODELS else out.resolve().name)
    check_name(called)
    signer = load_signing_key(key)
    module, recipe = make(model, like)
    wanted = (*(recipe.graphs if graphs is None else graphs), *asked_by(methods))
    recipe = replace(recipe, graphs=wanted, shared=recipe.shared if shared is None else shared)
    return export(
        module,
        recipe,
        name=called,
        version=version,
        signer=signer,
        out=out,
        engine=engine,
        progress=progress,
    )


def check_name(name: str) -> None:
    """Raise ExportError for a name that no bundle can have, with one that would do, before a minute is spent."""
    if not re.fullmatch(BUNDLE_NAME, name):
        proposed = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:64] or "my-model"
        raise ExportError(
            f"name {name!r}: expected lower-case letters, digits and hyphens, at most 64; "
            f"for example --name {proposed}"
        )


def asked_by(methods: Iterable[str]) -> tuple[str, ...]:
    """Return the graphs that these methods' contracts require of a bundle."""
    found: list[str] = []
    for method in methods:
        if method not in CONTRACTS:
            raise ExportError(f"unknown method {method!r}; known: {known_names(CONTRACTS)}")
        found += (graph for ask in CONTRACTS[method].values() for graph in ask.graphs)
    return tuple(found)


def make(model: str, like: str = "load-lstm-week") -> tuple[nn.Module, Recipe]:
    """Return a module with reproducible parameters, and its recipe; raise ExportError if none is found or made."""
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
        if not isinstance(recipe, Recipe):
            raise ExportError(
                f"{model}: its attribute recipe is {type(recipe).__name__}, not a Recipe of "
                "aggregator.extensions.authoring.export_spec"
            )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        try:
            module = factory()
        except Exception as error:
            raise ExportError(
                f"{model} cannot be created: {type(error).__name__}: {error}; it is called without "
                "arguments: give a function that needs none, such as "
                "def net(): return Net(width=8), and name it after the colon"
            ) from error
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
    except Exception as error:
        raise ExportError(f"{home} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _graphs(traced: Traced, recipe: Recipe, engine: Engine, progress: Progress) -> dict[str, bytes]:
    files = {}
    names = _names(recipe)
    for number, name in enumerate(names, 1):
        progress(name, number, len(names))
        try:
            data = GRAPHS[name](traced, recipe.loss).SerializeToString(deterministic=True)
            check_graph(name, traced, recipe.loss, engine(data))
        except ExportError as error:
            if name in ALWAYS:
                raise
            raise ExportError(f"graph {name!r}: {error}") from error
        files[f"{name}.onnx"] = data
    return files


def _names(recipe: Recipe) -> tuple[str, ...]:
    unknown = [name for name in recipe.graphs if name not in GRAPHS]
    if unknown:
        raise ExportError(f"unknown graph {unknown[0]!r}; known: {', '.join(GRAPHS)}")
    return tuple(dict.fromkeys((*ALWAYS, *recipe.graphs)))


def _manifest(
    traced: Traced, recipe: Recipe, name: str, version: int, contents: Mapping[str, bytes]
) -> Manifest:
    digests = {file: hashlib.sha256(data).hexdigest() for file, data in contents.items()}
    written = Manifest(
        name=name,
        version=version,
        min_sdk=oldest_sdk(recipe.features),
        layers=tuple((layer, tuple(shape)) for layer, shape in traced.layers),
        shared=recipe.shared,
        window=recipe.window,
        features=recipe.features,
        target=recipe.target,
        loss=recipe.loss,
        training=recipe.training,
        graphs={name: GraphFile(f"{name}.onnx", *SIGNATURES[name]) for name in _names(recipe)},
        golden=_golden(traced),
        files=digests,
        paths=recipe.paths,
        activation=activation(traced) if any(name in SPLIT for name in recipe.graphs) else None,
    )
    return Manifest.parse(written.canonical())  # validated like any other manifest


def _golden(traced: Traced) -> Golden:
    x = np.random.Generator(np.random.Philox(SEED)).random(traced.sample).round(4)
    with torch.no_grad():
        yhat = traced.predict(traced.initial, torch.tensor(x[None], dtype=torch.float32)).flatten()
    rows = tuple(tuple(float(value) for value in row) for row in x)
    return Golden(rows, tuple(round(float(value), 6) for value in yhat))
