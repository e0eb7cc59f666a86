"""Build Debian packages of the device, the aggregator, its console, and the witness.

    python -m tools.deb [--out dist]

``gridfed-edge`` depends on Debian's Python, numpy, cryptography and msgpack. It contains paho-mqtt;
``gridfed-aggregator`` contains prometheus-client and, for PostgreSQL, psycopg, which uses Debian's libpq;
``gridfed-console`` contains starlette and uvicorn. Debian 12 has older versions than gridfed needs.
Needs dpkg-deb, pip and the extra ``publish``.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.distributions import OUT, ROOT, distributions
from tools.manuals import PROGRAMS, command_line, write

LIBRARY = Path("usr/lib/gridfed")
DEPENDS = "python3 (>= 3.11), python3-numpy, python3-cryptography, python3-msgpack"
CONTAINED: Mapping[str, Sequence[str]] = {
    "edge_sdk": ("paho-mqtt>=2.1,<3",),
    "aggregator": ("prometheus-client>=0.20", "psycopg>=3.2,<4", "typing-extensions>=4.10"),
    "aggregator.extensions.console": (
        "starlette>=0.40",
        "uvicorn>=0.30",
        *("anyio>=4", "click>=8", "h11>=0.14", "idna>=3"),
    ),
    "aggregator.extensions.model_log": (),
}
"""Requirements that a package's library contains, by import package."""

DEPENDENCIES: Mapping[str, str] = {
    "edge_sdk": DEPENDS,
    "aggregator": "gridfed-edge (= {version}), libpq5",
    "aggregator.extensions.console": "gridfed-aggregator (= {version}), python3-jinja2",
    "aggregator.extensions.model_log": "gridfed-aggregator (= {version})",
}
"""Packages that a package depends on, by import package."""

UNITS: Mapping[str, tuple[str, ...]] = {
    "edge_sdk": ("gridfed-edge@.service", "gridfed-tap@.service"),
    "aggregator": ("gridfed-aggregator.service", "gridfed-aggregator-worker@.service"),
    "aggregator.extensions.console": ("gridfed-console.service",),
    "aggregator.extensions.model_log": (),
}
"""Units of systemd, by import package; an administrator enables them."""

WRAPPER = """\
#!/usr/bin/python3
import sys
sys.path.insert(0, __file__.removesuffix("usr/bin/{name}") + "{library}")
from {module} import main
sys.exit(main())
"""


def write_root(package: str, root: Path, version: str, summary: str) -> None:
    """Write the files of a Debian package below a folder.

    Args:
        package: ``edge_sdk``, ``aggregator``, or ``aggregator.extensions.console`` or
            ``aggregator.extensions.model_log``, whose code is in that of the aggregator.
        root: Empty folder that stands for ``/``.
    """
    name, library = command_line(package).name, root / LIBRARY
    if "." not in package:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, library / package, ignore=ignored)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    if CONTAINED[package]:
        subprocess.run(
            [*pip, "--no-deps", "--no-compile", "--target", str(library), *CONTAINED[package]],
            check=True,
        )
    shutil.rmtree(library / "bin", ignore_errors=True)
    if package == "edge_sdk":  # --version reads it
        metadata = library / f"gridfed-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: gridfed\nVersion: {version}\n")
    for path in write(package, root / "usr"):
        if path.suffix == ".1":
            path.with_suffix(".1.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
            path.unlink()
        elif "site-functions" in path.parts:
            vendor = root / "usr/share/zsh/vendor-completions"
            vendor.mkdir(parents=True)
            path.rename(vendor / path.name)
            path.parent.rmdir()
    units = root / "lib/systemd/system"
    for unit in UNITS[package]:
        units.mkdir(parents=True, exist_ok=True)
        text = (ROOT / "examples" / unit).read_text(encoding="utf-8")
        (units / unit).write_text(text.replace("/opt/gridfed/bin/", "/usr/bin/"), encoding="utf-8")
    wrapper = root / "usr/bin" / name
    wrapper.parent.mkdir(parents=True)
    wrapper.write_text(
        WRAPPER.format(name=name, library=LIBRARY.as_posix(), module=PROGRAMS[package])
    )
    wrapper.chmod(0o755)
    legal = root / "usr/share/doc" / name / "copyright"
    legal.parent.mkdir(parents=True)
    shutil.copy(ROOT / "LICENSE", legal)
    depends = DEPENDENCIES[package].format(version=version)
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) // 1024
    (root / "DEBIAN").mkdir()
    (root / "DEBIAN" / "control").write_text(
        f"Package: {name}\nVersion: {version}\nArchitecture: all\nSection: net\nPriority: optional\n"
        f"Maintainer: The gridfed authors <root@localhost>\nInstalled-Size: {size}\n"
        f"Depends: {depends}\nDescription: {summary}\n",
        encoding="utf-8",
    )


def build(out: Path) -> tuple[Path, ...]:
    """Build the packages; return the files."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    version = document["project"]["version"]
    out.mkdir(parents=True, exist_ok=True)
    built = []
    texts = {one.package: one.description for one in distributions(document["project"])}
    texts["aggregator.extensions.console"] = (
        "The operator's console of gridfed: pages over the database."
    )
    texts["aggregator.extensions.model_log"] = (
        "A witness that cosigns the log of models of a fleet of gridfed."
    )
    for package in CONTAINED:
        with tempfile.TemporaryDirectory() as place:
            root = Path(place) / "root"
            root.mkdir(mode=0o755)
            write_root(package, root, version, texts[package].rstrip("."))
            file = out / f"{command_line(package).name}_{version}_all.deb"
            command = ["dpkg-deb", "--root-owner-group", "--build", str(root), str(file)]
            subprocess.run(command, check=True)
            built.append(file)
    return tuple(built)


def main() -> None:
    """Build the packages into the folder of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the files (dist)")
    build(parser.parse_args().out)


if __name__ == "__main__":
    main()
