"""Export a net of [run.graph] as a file that the aggregator runs without torch.

Needs torch and onnx: pip install 'gridfed[train]'. One file serves every number of stations and every bundle
in two halves. The nets of two blocks (pfgl: of order 3) are installed with the package.

  gridfed-aggregator export-graph pfgl-3-3.zip --blocks 3
  gridfed-aggregator export-graph astgcn.zip --astgcn-order
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from aggregator.commands.arguments import CommandError
from aggregator.extensions.papers.graph.exported_net import NetOptions
from edge_sdk.app.cli import CommandResult
from edge_sdk.app.extensions import ExtensionIndex


def add_arguments(parser: ArgumentParser) -> None:
    """Add the file and the options of the net."""
    parser.add_argument("out", type=Path, help="file to write, for run.graph.file")
    parser.add_argument(
        "--kind", choices=["pfgl", "conv2d", "graphnet"], default="pfgl", help="the net (pfgl)"
    )
    parser.add_argument("--blocks", type=int, default=2, help="blocks or layers, in sequence (2)")
    parser.add_argument("--order", type=int, default=3, help="pfgl: Chebyshev polynomials (3)")
    words = "pfgl: also a residual path and a LayerNorm"
    parser.add_argument("--residual-ln", action="store_true", help=words)
    words = "pfgl: convolve h and attend over the weighted steps, as ASTGCN does"
    parser.add_argument("--astgcn-order", action="store_true", help=words)


def run(args: Namespace) -> CommandResult:
    """Write the file, after comparing it with torch."""
    if not 1 <= args.blocks <= 16 or not 2 <= args.order <= 16:
        raise CommandError("export-graph: --blocks is 1 to 16, and --order 2 to 16")
    try:
        from aggregator.extensions.papers.graph.nets.net_export import (  # noqa: PLC0415 - loads torch
            TOLERANCE,
            exported,
            largest_error,
        )

        emitted = ExtensionIndex("aggregator").loaders("emitters")["onnx"]()
    except ModuleNotFoundError as error:
        raise CommandError(
            f"export-graph needs {error.name}, which is not installed",
            hint="pip install 'gridfed[train]'",
        ) from error
    options = NetOptions(args.kind, args.blocks, args.order, args.residual_ln, args.astgcn_order)
    data = exported(options, emitted)
    apart = largest_error(data)
    if apart > TOLERANCE:
        raise CommandError(f"export-graph: differs from torch by {apart:.1e}, above {TOLERANCE}")
    args.out.write_bytes(data)
    found = {"file": str(args.out), "net": options.name, "error": apart}
    return CommandResult(found, f"{args.out}: {options.name}, differs from torch by {apart:.1e}")
