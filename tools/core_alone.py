"""Test the core without the extensions: in a copy of the checkout from which their folders are deleted.

``python -m tools.core_alone`` runs the quick tests of edge_sdk and aggregator there, their examples in
docstrings, and a fleet of meters under a robust rule with local noise, in memory and as processes on a
real broker (``tools.core_fleet``). Left out are test files that import an extension or a tool, and tests
with the marker ``extension``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools import core_fleet

ROOT = Path(__file__).parents[1]
PROGRAMS = ("edge_sdk", "aggregator")
TESTED = (*PROGRAMS, *(f"tests/{name}" for name in PROGRAMS), "tests/fleet/test_core_alone.py")
MARKERS = "not extension and not slow and not chaos and not bench and not soak"

_NO_EDITABLE = """\
import sys
sys.meta_path[:] = [one for one in sys.meta_path if "editable" not in getattr(one, "__module__", "")]
"""
"""The copy is imported, and never the checkout that the environment was installed from."""


def copy_core(target: Path) -> list[str]:
    """Copy the checkout's files without the extensions.

    Args:
        target: An empty folder.

    Returns:
        The test files that import an extension or a tool, relative to the copy.
    """
    for entry in ROOT.iterdir():
        if entry.is_dir() and not entry.name.startswith("."):
            shutil.copytree(entry, target / entry.name, symlinks=True, ignore=_left_out)
        elif entry.is_file():
            shutil.copy(entry, target / entry.name)
    (target / "sitecustomize.py").write_text(_NO_EDITABLE)
    files = (file for name in TESTED for file in (target / name).rglob("*.py"))
    return sorted(str(one.relative_to(target)) for one in files if _imports_extension(one))


def _left_out(folder: str, names: list[str]) -> list[str]:
    inside = Path(folder).relative_to(ROOT).parts
    return [one for one in names if one == "__pycache__" or is_extensions((*inside, one))]


def is_extensions(parts: tuple[str, ...]) -> bool:
    """Return whether a path is a folder of extensions, or of their tests.

    >>> is_extensions(("tests", "edge_sdk", "extensions")), is_extensions(("tools", "extensions"))
    (True, False)
    """
    inner = parts[1:] if parts[:1] == ("tests",) else parts
    return len(inner) == 2 and inner[0] in PROGRAMS and inner[1] == "extensions"


def _imports_extension(file: Path) -> bool:
    text = file.read_text("utf-8")
    return "from tools." in text or any(f"{program}.extensions" in text for program in PROGRAMS)


def main(arguments: list[str] | None = None) -> int:
    """Run the tests of the core in a copy without the extensions."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.core_alone",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pytest", nargs="*", help="more arguments for pytest, after --")
    more = parser.parse_args(arguments).pytest
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "gridfed"
        target.mkdir()
        left_out = copy_core(target)
        print(f"{len(left_out)} files of tests import an extension or a tool", flush=True)
        paths = [name for name in TESTED if (target / name).exists()]
        command = [sys.executable, "-m", "pytest", "-m", MARKERS, *paths, *more]
        command += [f"--ignore={name}" for name in left_out]
        environ = os.environ | {"PYTHONPATH": str(target)}
        code = subprocess.run(command, cwd=target, env=environ, check=False).returncode
        if not code:
            for version, releases, _, first, *_ in core_fleet.run(target):
                print(f"a meter: version {version}, {releases} releases, next hour {first:.3f}")
        return code


if __name__ == "__main__":
    sys.exit(main())
