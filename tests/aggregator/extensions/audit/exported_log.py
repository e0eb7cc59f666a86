"""A file of the log of models, and what a program prints that reads it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from edge_sdk.protocol import keys

ROOT = Path(__file__).parents[4]


def write_log(folder: Path, lines: Iterable[str], public: bytes) -> None:
    """Write `export.jsonl`, and the aggregator's public key beside it."""
    (folder / "export.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    keys.save_public(folder / "aggregator.pub", public)


def printed(folder: Path, *words: str) -> tuple[int, dict]:
    """Run a module in a folder with ``--json``; return its exit code and what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", *words, "--json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)
