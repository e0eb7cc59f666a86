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
        f"import runpy, sys; sys.modules[{package!r}] = None; sys.argv = ['reproduce.py', 'list'];"
        f"runpy.run_path({str(TOOL)!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"the package {package} is not installed" in done.stderr
    assert "pip install" in done.stderr
    assert "Traceback" not in done.stderr
