"""Forecast two feeders of 40 simulated homes from masked sums, which a witness opens.

Every home masks its readings and its expected values, as a device does; a tenth is silent, every day other
ones. The witness's record and a picture of each feeder are in the folder.

  gridfed-sim feeder --out feeders
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from edge_sdk.app.cli import CommandResult
from edge_sdk.app.settings import SettingsError
from firmware_sim.direct.feeder import lines, pictures, simulated


def add_arguments(parser: ArgumentParser) -> None:
    """Add the folder and the size of the simulation."""
    parser.add_argument("--out", type=Path, default=Path("feeders"), help="new folder")
    parser.add_argument("--homes", type=int, default=40, help="homes of both feeders (40)")
    parser.add_argument("--days", type=int, default=56, help="days of the history (56)")
    parser.add_argument("--silent", type=float, default=0.1, help="share of silent homes (0.1)")
    parser.add_argument("--seed", type=int, default=1, help="of homes and silences")


def run(args: Namespace) -> CommandResult:
    """Simulate; raise SettingsError for a folder that exists or a wrong size."""
    if args.out.exists():
        raise SettingsError(f"{args.out} exists", hint="choose another folder with --out")
    args.out.mkdir(parents=True)
    try:
        found = simulated(
            args.out, homes=args.homes, days=args.days, silent=args.silent, seed=args.seed
        )
    except ValueError as error:
        raise SettingsError(str(error)) from error
    files = pictures(found, args.out)
    data = {
        "feeders": [
            {**one.forecast.document(), "truth": list(one.truth), "error": one.error}
            for one in found
        ],
        "pictures": [str(file) for file in files],
    }
    return CommandResult(data, "\n".join((*lines(found), *map(str, files))))
