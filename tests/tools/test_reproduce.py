"""The tool names a package that is missing, and prints no trace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "reproduce.py"


@pytest.mark.parametrize("package", ["rich", "numpy"])
def test_a_missing_package_is_named_without_a_trace(package):
    code = (
        f"import runpy, sys; sys.modules[{package!r}] = None; sys.argv = ['reproduce.py', 'e7'];"
        f"runpy.run_path({str(TOOL)!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"the package {package} is not installed" in done.stderr
    assert "pip install" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_list_needs_no_package_of_the_experiments():
    code = (
        "import runpy, sys\nfor name in ('pandas', 'rich', 'torch', 'scipy'): sys.modules[name] = None\n"
        f"sys.argv = ['reproduce.py', 'list']; runpy.run_path({str(TOOL)!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Table II" in done.stdout
