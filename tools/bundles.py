"""Export the shipped bundles again, signed with a fresh key that is not kept.

    python -m tools.bundles [--out FOLDER]
    python -m tools.bundles --only load-week-1 cells-week-1 --key week

The second form writes some bundles and leaves the others with their signatures; its public key is
``release-KEY.pub``. The key's public half, ``release.pub``, is shipped beside the bundles and its private half is
forgotten: trust in a shipped bundle is trust in the installed package, and the signature proves
that its files are whole and belong together.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from aggregator.extensions.authoring.catalogue import SHIPPED
from aggregator.extensions.authoring.closed_form import ANALYTIC
from aggregator.extensions.authoring.closed_form import write as write_closed_form
from aggregator.extensions.authoring.day_profiles import DAY_PROFILES
from aggregator.extensions.authoring.day_profiles import write as write_day_profile
from aggregator.extensions.authoring.export import export, make
from edge_sdk.bundle import Bundle, TrustedKeys, shipped_folder
from edge_sdk.protocol.keys import SigningKey, save_public
from edge_sdk.runtime import load_graph

VERSION = 1


NAMES = (*SHIPPED, *ANALYTIC, *DAY_PROFILES)


def write(out: Path, names: Sequence[str] = NAMES, *, label: str = "") -> None:
    """Write models of the catalogue below ``out``, checked on the devices' engine.

    Args:
        out: Folder of the bundles.
        label: Name of the release key that is added; empty replaces all keys by one.
    """
    torch.set_num_threads(1)  # small graphs: more threads only wait for one another
    key = SigningKey.generate()
    out.mkdir(parents=True, exist_ok=True)
    for before in out.glob(f"release-{label}.pub" if label else "release*.pub"):
        before.unlink()
    save_public(out / (f"release-{label}.pub" if label else "release.pub"), key.public)
    for name in names:
        if name in ANALYTIC:
            write_closed_form(ANALYTIC[name], out / name, name=name, version=VERSION, signer=key)
            continue
        if name in DAY_PROFILES:
            write_day_profile(
                DAY_PROFILES[name], out / name, name=name, version=VERSION, signer=key
            )
            continue
        module, recipe = make(name)
        folder = export(
            module,
            recipe,
            name=name,
            version=VERSION,
            signer=key,
            out=out / name,
            engine=load_graph,
        )
        bundle = Bundle.open(folder, trust=TrustedKeys((key.public,)))
        print(f"{name}: {bundle.manifest.size} parameters, {bundle.spec.shared_size} shared")


def main() -> None:
    """Read the command line and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=shipped_folder(), help="where (the package)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="models to write (all)")
    parser.add_argument("--key", default="", help="name of the added release key, with --only")
    args = parser.parse_args()
    if bool(args.only) != bool(args.key):
        parser.error("--only and --key belong together: the other bundles keep their signatures")
    write(args.out, args.only or NAMES, label=args.key)


if __name__ == "__main__":
    main()
