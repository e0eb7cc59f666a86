"""Export a torch module, or a model in closed form, as a signed bundle.

A torch module needs torch: pip install 'gridfed[train]'. Writes the ONNX graphs, compares them with torch on
sample windows, and signs the result with the root key. A model in closed form (load-analytic, load-day-1)
has no graph and needs numpy alone.

  gridfed-aggregator export load-mlp bundles/load-mlp --key root.key
  gridfed-aggregator export load-analytic bundles/load-analytic --key root.key
  gridfed-aggregator export load-analytic bundles/load-hidden --key root.key --hidden bundles/net
  gridfed-aggregator export my_models.py:Net bundles/net --key root.key --for fedavg bafdp
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from aggregator.bundles import open_bundle
from aggregator.commands.arguments import CommandError
from aggregator.extensions.authoring import day_profiles
from aggregator.extensions.authoring.closed_form import ANALYTIC, write
from aggregator.extensions.authoring.day_profiles import DAY_PROFILES
from edge_sdk.app.cli import CommandResult
from edge_sdk.protocol.contract.archive import unpack
from edge_sdk.protocol.contract.manifest import FORECAST, ManifestError
from edge_sdk.protocol.keys import KeyFileError, load_signing_key

if TYPE_CHECKING:
    from aggregator.extensions.authoring.hidden_layer import TrainedNet


def add_arguments(parser: ArgumentParser) -> None:
    """Add the model, the target, the key, and options of the bundle."""
    parser.add_argument("model", help="name of a model, package.module:factory, or file.py:Class")
    parser.add_argument("out", help="folder of the new bundle")
    parser.add_argument("--key", metavar="FILE", required=True, help="the root's private key")
    parser.add_argument("--name", help="name of the bundle (the model's, or the folder's)")
    parser.add_argument(
        "--bundle-version", type=int, default=1, help="version, higher with every release (1)"
    )
    parser.add_argument(
        "--like", default="load-lstm-week", help="model whose features are used (load-lstm-week)"
    )
    parser.add_argument(
        "--shared", nargs="*", metavar="PREFIX", help="layers that are shared by default"
    )
    parser.add_argument(
        "--for",
        dest="methods",
        nargs="+",
        default=[],
        metavar="METHOD",
        help="add the graphs that these methods need",
    )
    words = "closed form only: a network whose last hidden layer becomes features (needs onnx)"
    parser.add_argument("--hidden", metavar="BUNDLE", help=words)
    words = "of --hidden: the trained vector, float32 like initial.f32 (the bundle's initial.f32)"
    parser.add_argument("--vector", metavar="FILE", help=words)
    parser.add_argument(
        "--graphs", nargs="*", metavar="NAME", help="further graphs besides gradient and forecast"
    )


def run(args: Namespace) -> CommandResult:
    """Export a model as a signed bundle."""
    if args.model in ANALYTIC or (args.model in DAY_PROFILES and not args.hidden):
        return _closed_form(args)
    if args.hidden or args.vector:
        raise CommandError("export: --hidden and --vector are for models in closed form")
    try:
        from aggregator.extensions.authoring.export import export_command  # noqa: PLC0415 - loads torch
        from aggregator.extensions.authoring.export_spec import ExportError  # noqa: PLC0415 - as below
    except ModuleNotFoundError as error:
        if error.name not in {"torch", "onnx", "sympy"}:
            raise
        raise CommandError(
            f"export needs {error.name}, which is not installed",
            hint="pip install 'gridfed[train]'; nothing else here needs it. On Linux this brings CUDA "
            "libraries of gigabytes: install torch's CPU build first, as pytorch.org shows",
        ) from error
    try:
        out = export_command(
            args.model,
            Path(args.out),
            key=Path(args.key),
            version=args.bundle_version,
            name=args.name,
            like=args.like,
            shared=None if args.shared is None else tuple(args.shared),
            graphs=None if args.graphs is None else tuple(args.graphs),
            methods=tuple(args.methods),
            progress=_ignore if args.json else _print_progress,
        )
    except ExportError as error:
        raise CommandError(f"export: {error}") from error
    return CommandResult({"bundle": str(out)}, f"{out}: written, checked against torch, and signed")


def _print_progress(name: str, number: int, of: int) -> None:
    print(f"  {number} of {of}: {name}", file=sys.stderr, flush=True)  # noqa: T201 - while it works


def _ignore(_name: str, _number: int, _of: int) -> None:
    """Report nothing: a program reads the output."""


def _closed_form(args: Namespace) -> CommandResult:
    """Write a bundle in closed form; only a network's hidden layer needs a graph."""
    if args.like != "load-lstm-week" or args.shared or args.graphs or args.methods:
        raise CommandError(
            f"export {args.model}: --like, --shared, --graphs and --for are for torch modules"
        )
    try:
        signer = load_signing_key(Path(args.key))
        name = args.name or (Path(args.out).name if args.hidden else args.model)
        named = {"name": name, "version": args.bundle_version}
        if args.model in DAY_PROFILES:
            out = day_profiles.write(
                DAY_PROFILES[args.model], Path(args.out), **named, signer=signer
            )
        else:
            net = _trained_net(args, signer.public) if args.hidden else None
            out = write(ANALYTIC[args.model], Path(args.out), **named, signer=signer, net=net)
    except (KeyFileError, OSError, ManifestError) as error:
        raise CommandError(f"export: {error}") from error
    return CommandResult({"bundle": str(out)}, f"{out}: written and signed")


def _trained_net(args: Namespace, root: bytes) -> TrainedNet:
    """Return the network of ``--hidden``, with the vector of ``--vector`` or the bundle's own."""
    try:
        from aggregator.extensions.authoring.hidden_layer import TrainedNet  # noqa: PLC0415 - needs onnx
    except ModuleNotFoundError as error:
        raise CommandError(
            f"export --hidden needs {error.name}, which is not installed",
            hint="pip install 'gridfed[train]'",
        ) from error
    bundle = open_bundle(args.hidden, folder=Path(), trusted=(root,))
    if bundle.manifest.analytic is not None:
        raise CommandError(
            f"export --hidden {args.hidden}: is a model in closed form, not a network"
        )
    vector = bundle.initial
    if args.vector:
        vector = np.fromfile(args.vector, "<f4").astype(np.float32)
        if len(vector) != bundle.manifest.size or not np.isfinite(vector).all():
            raise CommandError(
                f"export --vector {args.vector}: {len(vector)} numbers, expected"
                f" {bundle.manifest.size} finite ones of {bundle.manifest.name}"
            )
    graph = bundle.manifest.graphs[FORECAST].file
    return TrainedNet(bundle.manifest, unpack(bundle.archive)[graph], vector)
