"""The commands of examples/feeder/README.md word by word, and a search of the files and memory of each party.

Both organisations and nine homes are real programs over Mosquitto with TLS. When the feeder is forecast, files
and memory of the operator's daemon and of the witness are searched for what only the other may have.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from aggregator.extensions.authority.access.broker_process import mosquitto_program
from edge_sdk.extensions.sums.masked_sum import FollowedContract, SumContext, unpacked
from edge_sdk.extensions.sums.seed import ExchangeKey, mask_of
from firmware_sim.fleet.federation import free_port

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.extension,
    pytest.mark.timeout(900),
]
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "feeder"
MINUTES = 1.5
ENDED = """
jobs -l > jobs
read -r _
"""


class Trial:
    """The page's commands in a folder, and the programs that they have started.

    Args:
        last: In place of the page's last commands, which wait for the forecast.
        contracts: In place of the example's program that appends the contracts.
        modules: Folder whose ``sitecustomize`` every program loads.
    """

    def __init__(self, folder: Path, last: str = "", contracts: str = "", modules: str = ""):
        self.folder, port = folder, str(free_port())
        page = EXAMPLE.joinpath("README.md").read_text("utf-8")
        parts = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
        script = "\n".join([*parts[:-1], last or parts[-1]]) + ENDED
        assert "--minutes 3" in script
        script = script.replace("--minutes 3", f"--minutes {MINUTES}").replace("8883", port)
        script = script.replace("broker config", f"broker config --port {port}")
        example = folder / "example"
        example.mkdir()
        for path in EXAMPLE.iterdir():
            text = path.read_text("utf-8").replace("8883", port)
            (example / path.name).write_text(text)
        if contracts:
            (example / "contracts.py").write_text(contracts)
        programs = folder / "programs"
        programs.mkdir()
        for name in ("edge_sdk", "aggregator", "aggregator.extensions.model_log"):
            command = {"edge_sdk": "gridfed-edge", "aggregator": "gridfed-aggregator"}
            path = programs / command.get(name, "gridfed-witness")
            path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {name} "$@"\n')
            path.chmod(0o755)
        (programs / "python").symlink_to(sys.executable)
        found = [str(programs), os.environ["PATH"], str(Path(mosquitto_program()).parent)]
        environ = os.environ | {
            "PATH": os.pathsep.join(found),
            "PYTHONPATH": os.pathsep.join(filter(None, (modules, str(ROOT)))),
            "EXAMPLE": str(example),
            "GRIDFED_AGGREGATOR_HTTP__LISTEN": "off",
        }
        self.log = (folder / "log").open("wb")
        self.shell = subprocess.Popen(
            ["bash", "-ec", script], cwd=folder, env=environ, stdin=subprocess.PIPE,
            stdout=self.log, stderr=self.log, start_new_session=True,
        )  # fmt: skip

    @property
    def said(self) -> str:
        return (self.folder / "log").read_text("utf-8", "replace")

    def wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not (self.folder / "jobs").exists():
            assert self.shell.poll() is None, self.said
            assert time.monotonic() < end, self.said
            time.sleep(1.0)
        time.sleep(0.5)

    def process(self, words: str) -> int:
        """Return the process of a background command; it is a child of the shell, or the shell of it."""
        rows = [row for row in (self.folder / "jobs").read_text().splitlines() if words in row]
        return int(re.search(r"\d+(?= Running)", rows[0])[0])

    def end(self) -> None:
        os.killpg(self.shell.pid, signal.SIGTERM)
        self.shell.wait(60)
        self.shell.stdin.close()
        self.log.close()


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    if mosquitto_program() is None:
        pytest.skip("mosquitto is not installed")
    made = Trial(tmp_path_factory.mktemp("feeder"))
    try:
        made.wait(600.0)
        yield made
    finally:
        made.end()


def test_the_page_leads_to_the_forecast_of_the_feeder(trial):
    assert "feeder-history F12" in trial.said
    assert "9 of 9 devices" in trial.said
    assert "from the devices alone" in trial.said
    assert "north feeder-tomorrow" in trial.said
    log = (trial.folder / "witness" / "serve.log").read_text()
    assert log.count("set opened") == 2


def memory(process: int) -> bytes:
    """Return the writable memory of a process; skip where it may not be read."""
    found = []
    try:
        maps = Path(f"/proc/{process}/maps").read_text()
        with Path(f"/proc/{process}/mem").open("rb", buffering=0) as file:
            for row in maps.splitlines():
                words = row.split()
                if not words[1].startswith("rw") or words[-1] in {"[vvar]", "[vsyscall]"}:
                    continue
                begin, end = (int(part, 16) for part in words[0].split("-"))
                file.seek(begin)
                found.append(file.read(end - begin))
    except (PermissionError, FileNotFoundError) as error:
        pytest.skip(f"the memory of another process cannot be read: {error}")
    return b"\0".join(found)


def files(folder: Path) -> bytes:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return b"\0".join(path.read_bytes() for path in paths)


def forms(integers, terms) -> list[bytes]:
    """Return how a device's vector may stand somewhere: as integers, as numbers, as text."""
    values = (integers * terms.resolution + terms.lowest).round(3)
    shown = []
    four, whole = values[:4], integers[:4]
    shown += [whole.astype(form).tobytes() for form in ("<u8", "<u4")]
    shown += [four.astype(form).tobytes() for form in ("<f8", "<f4")]
    shown += [mark.join(map(str, four.tolist())).encode() for mark in (",", ", ", " ")]
    shown += [mark.join(map(str, whole.tolist())).encode() for mark in (",", ", ")]
    return shown


def exact(integers, terms) -> bytes:
    return (integers * terms.resolution + terms.lowest)[:4].astype("<f8").tobytes()


def test_neither_party_has_what_only_the_other_may_have(trial):
    database = trial.folder / "operator" / "aggregator-state" / "aggregator.db"
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as db:
        rows = db.execute(
            "SELECT c.body, m.device, m.period, m.enc, m.masked FROM sum_messages m"
            " JOIN sum_contracts c ON c.digest = m.contract"
        ).fetchall()
    assert len(rows) == 18
    opening = ExchangeKey(
        bytes.fromhex((trial.folder / "witness" / "witness-open.key").read_text())
    )
    vectors, seeds, masked, masks = [], [], [], []
    for body, device, period, enc, blob in rows:
        contract = FollowedContract.read(body)
        info = SumContext("north", device, contract.digest, period).info()
        seed = opening.seed(enc, info=info)
        mask = mask_of(seed, 24)
        plain = unpacked(blob, 24) - mask
        if contract.terms.source == "history":
            drawn = (trial.folder / "homes" / device / "load.csv").read_text().splitlines()
            assert {float(row.split(",")[1]) for row in drawn[1:]} >= {
                round(float(k * contract.terms.resolution), 3) for k in plain
            }
        vectors += [*forms(plain, contract.terms), exact(plain, contract.terms)]
        seeds += [seed, seed.hex().encode()]
        masked.append(blob[:32])
        masks += [mask[:4].tobytes(), *forms(mask, contract.terms)[:1]]
    places = {
        "operator's files": files(trial.folder / "operator"),
        "daemon": memory(trial.process("gridfed-aggregator run")),
        "witness's files": files(trial.folder / "witness"),
        "witness": memory(trial.process("gridfed-witness serve")),
    }
    own = {"home-1": memory(trial.process("gridfed-edge run home-$n"))}
    hidden = {
        "operator's files": [*vectors, *seeds, *masks],
        "daemon": [*vectors, *seeds, *masks],
        "witness's files": [*vectors, *masked],
        "witness": [*vectors, *masked],
    }
    for name, wanted in hidden.items():
        found = [one for one in wanted if one in places[name]]
        assert found == [], (name, len(found))
    assert all(
        one in places["operator's files"] for one in masked
    )  # the search finds what is there
    first = np.loadtxt(trial.folder / "homes" / "home-1" / "load.csv", str, skiprows=1)
    last = [float(row.split(",")[1]) for row in first[-20:-16]]
    assert (
        np.array(last).tobytes() in own["home-1"]
        or np.array(last, "<f4").tobytes() in own["home-1"]
    )
