"""Build the three distributions of this repository, as an index and a device receive them.

    python -m tools.distributions [--out dist] [--only NAME ...] [--isolated]

``gridfed`` is what a device installs; ``gridfed-aggregator`` and ``gridfed-sim`` need it. Each has a source
distribution, from which its wheel is built. Metadata come from ``pyproject.toml``, which installs a checkout as one
project. Needs the extra ``publish``, whose setuptools builds them; ``--isolated`` takes that of the index, in six
environments of their own.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.manuals import PROGRAMS, write

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "dist"


@dataclass(frozen=True, slots=True)
class Distribution:
    """One distribution."""

    name: str
    package: str  # import package that it contains
    description: str
    requires: Sequence[str]
    extras: Mapping[str, Sequence[str]] = field(default_factory=dict)  # Requirements by extra


def distributions(project: Mapping[str, Any]) -> tuple[Distribution, ...]:
    """Return the distributions of a ``[project]`` table.

    The extras of ``gridfed`` have the names that they have in a checkout.

    Args:
        project: The table of ``pyproject.toml``.
    """
    version, extras = project["version"], project["optional-dependencies"]
    pinned = {name: f"{name}=={version}" for name in ("gridfed", "gridfed-aggregator")}
    sim = [one for one in extras["sim"] if not one.startswith("gridfed[")]
    interfaces = {name: extras[name] for name in ("p1", "modbus", "ocpp", "pm3gpp", "pkcs11")}
    return (
        Distribution(
            "gridfed",
            "edge_sdk",
            project["description"],
            project["dependencies"],
            {
                **interfaces,
                "aggregator": [pinned["gridfed-aggregator"]],
                **{
                    name: [f"gridfed-aggregator[{name}]=={version}"]
                    for name in ("console", "postgres", "train")
                },
                "sim": [f"gridfed-sim=={version}"],
                **{
                    name: [f"gridfed-sim[{name}]=={version}"]
                    for name in ("evaluate", "compare", "ray")
                },
            },
        ),
        Distribution(
            "gridfed-aggregator",
            "aggregator",
            "The aggregator of gridfed: one daemon for a fleet of devices, and its operator's commands.",
            [pinned["gridfed"], *extras["aggregator"]],
            {name: extras[name] for name in ("console", "postgres", "train")},
        ),
        Distribution(
            "gridfed-sim",
            "firmware_sim",
            "Simulated devices and fleets of gridfed, its demo, and the comparison on your own records.",
            [*pinned.values(), *sim],
            {name: extras[name] for name in ("evaluate", "compare", "ray")},
        ),
    )


def write_tree(distribution: Distribution, document: Mapping[str, Any], out: Path) -> None:
    """Write the sources of a distribution: an ordinary setuptools project.

    Args:
        document: The repository's ``pyproject.toml``.
        out: Empty folder.
    """
    package = distribution.package
    shutil.copytree(ROOT / package, out / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "LICENSE", out)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (out / "README.md").write_text(without_local_links(readme), encoding="utf-8")
    programs = [one for one in PROGRAMS if one.split(".")[0] == package]
    shared = [path.relative_to(out) for program in programs for path in write(program, out)]
    text = pyproject(distribution, document, shared)
    (out / "pyproject.toml").write_text(text, encoding="utf-8")
    (out / "MANIFEST.in").write_text("graft share\n", encoding="utf-8")


def pyproject(
    distribution: Distribution, document: Mapping[str, Any], shared: Sequence[Path]
) -> str:
    """Return the ``pyproject.toml`` of a distribution.

    Args:
        document: The repository's ``pyproject.toml``.
        shared: Manual pages and completion, relative to the tree.
    """
    project, package = document["project"], distribution.package
    scripts = {
        name: target
        for name, target in project["scripts"].items()
        if target.split(".")[0] == package
    }
    metadata = {
        "name": distribution.name,
        "version": project["version"],
        "description": distribution.description,
        "readme": "README.md",
        **{key: project[key] for key in ("license", "license-files", "requires-python")},
        **{key: project[key] for key in ("authors", "keywords")},
        "classifiers": [one for one in project["classifiers"] if not one.startswith("Private")],
        "dependencies": list(distribution.requires),
    }
    setuptools = document["tool"]["setuptools"]
    folders: dict[str, list[str]] = {}
    for path in shared:
        folders.setdefault(path.parent.as_posix(), []).append(path.as_posix())
    return "".join(
        (
            _table("build-system", document["build-system"]),
            _table("project", metadata),
            _table("project.optional-dependencies", distribution.extras),
            _table("project.scripts", scripts),
            _table("tool.setuptools.packages.find", {"include": [f"{package}*"]}),
            _table("tool.setuptools.package-data", {package: setuptools["package-data"][package]}),
            _table("tool.setuptools.data-files", folders),
        )
    )


def without_local_links(text: str) -> str:
    """Return Markdown with links into the repository as plain text; an index page has no such files.

    >>> without_local_links("See [devices](docs/devices.md) and [numpy](https://numpy.org).")
    'See devices and [numpy](https://numpy.org).'
    """
    return re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]*\)", r"\1", text)


def _table(name: str, entries: Mapping[str, Any]) -> str:
    lines = [f"{json.dumps(key)} = {_value(value)}" for key, value in entries.items()]
    return "\n".join((f"[{name}]", *lines, "", ""))


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{key} = {_value(one)}" for key, one in value.items())
        return f"{{ {pairs} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value)


def build(out: Path, names: Sequence[str] = (), *, isolated: bool = False) -> tuple[Path, ...]:
    """Build distributions, each wheel from its source distribution; return the files.

    A line is printed for each distribution, and the output of a build only if it fails.

    Args:
        names: Distributions to build; all if empty.
        isolated: Build in fresh environments with setuptools from the index, not in this one.
    """
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    out = out.absolute()  # a build runs in a folder of its own
    out.mkdir(parents=True, exist_ok=True)
    chosen = [one for one in distributions(document["project"]) if not names or one.name in names]
    built: list[Path] = []
    for number, distribution in enumerate(chosen, 1):
        print(f"{distribution.name}: building, {number} of {len(chosen)} ...", flush=True)
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as place:
            tree = Path(place) / distribution.name
            tree.mkdir()
            write_tree(distribution, document, tree)
            switches = [] if isolated else ["--no-isolation"]
            _run("build", *switches, "--outdir", str(out), str(tree), place=place)
        stem = f"{distribution.name.replace('-', '_')}-{document['project']['version']}"
        files = (out / f"{stem}.tar.gz", out / f"{stem}-py3-none-any.whl")
        built += files
        seconds = time.monotonic() - begun
        print(f"  {', '.join(file.name for file in files)} ({seconds:.0f} s)", flush=True)
    return tuple(built)


def _run(module: str, *arguments: str, place: str | None = None) -> None:
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(
        command, cwd=place, text=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}\ndistributions: {module} failed, see above")


def main() -> None:
    """Build the distributions of the command line and check them with twine."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the files (dist)")
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="distributions")
    parser.add_argument("--isolated", action="store_true", help="use the index's setuptools")
    args = parser.parse_args()
    built = build(args.out, args.only, isolated=args.isolated)
    print("checking them with twine ...", flush=True)
    _run("twine", "check", "--strict", *map(str, built))


if __name__ == "__main__":
    main()
