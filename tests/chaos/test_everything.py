"""``make chaos`` in small: twelve devices, every fault once, and the history check at the end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.chaos.faults import FAULTS

pytestmark = [pytest.mark.chaos, pytest.mark.broker]

ROOT = Path(__file__).resolve().parents[2]


def test_random_kills_lose_and_duplicate_no_update(tmp_path):
    words = ["--out", str(tmp_path / "run"), "--devices", "8", "--seconds", "20", "--seed", "5"]
    done = subprocess.run(
        [sys.executable, "-m", "tools.chaos", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    struck = {event["name"] for event in report["events"]}
    skipped = {note.partition(":")[0] for note in report["notes"]}
    assert struck | skipped == set(FAULTS)
    assert report["verdict"]["sent"] >= report["verdict"]["receipted"] > 20
    assert report["audit"]["moved"] > 5
