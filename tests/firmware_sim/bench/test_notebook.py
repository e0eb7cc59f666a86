"""The notebook in examples/ runs, with Jupyter where it is installed and without it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parents[3] / "examples" / "sweep.ipynb"


@pytest.mark.slow
def test_the_cells_run_one_after_the_other(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    names = {"__name__": "notebook"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    assert "fedprox median flipping" in capsys.readouterr().out
    assert names["repeated"]["result"]["rounds"] == 4


def test_jupyter_runs_the_notebook(tmp_path):
    nbclient = pytest.importorskip("nbclient", reason="Jupyter is not installed")
    nbformat = pytest.importorskip("nbformat", reason="Jupyter is not installed")
    pytest.importorskip("ipykernel", reason="Jupyter is not installed")
    shutil.copy(NOTEBOOK, tmp_path)
    notebook = nbformat.read(tmp_path / NOTEBOOK.name, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=resources).execute()
    assert (tmp_path / "sweep-results" / "results.csv").is_file()
