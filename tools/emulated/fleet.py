"""Run of two devices over a real broker: an agent on the board and one on this machine."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from firmware_sim.fleet.federation import Federation, free_port, start_broker
from firmware_sim.fleet.processes import ProcessGroup, stoppable
from firmware_sim.fleet.run_files import prepare
from firmware_sim.samples import sample_set
from firmware_sim.scenario import RunSettings, Scenario
from tools.emulated.board import Board
from tools.emulated.sealing import Wrong

_ROUNDS = 2
_LIMIT = 240.0
_LAST_CHOICE = 600.0  # s that the board may fetch the final model and choose its forecast in
_PAIR = Scenario(
    "two architectures",
    devices=2,
    run=RunSettings(rounds=_ROUNDS, settings={"steps": 4}, quorum=2, deadline="2m"),
    until="2018-02-01",
)


def learned(board: Board, lock: str, cpu: str) -> str:
    """Train both until the model has moved; each move needs both.

    Raises:
        Failure: A program ended, or the model did not move in time.
        Wrong: The board's agent has not answered every round, or owes something at the end.
    """
    with tempfile.TemporaryDirectory(prefix="gridfed-emulated-") as made, stoppable():
        folder = Path(made)
        with ProcessGroup(folder / "logs") as family:
            url, page = start_broker(family, folder / "broker"), f"127.0.0.1:{free_port()}"
            homes = sample_set("homes")
            ready = prepare(folder / "fleet", "pair", _PAIR, homes, broker=url, page=page)
            pair = Federation(ready, _ROUNDS, family)
            pair.start_aggregator()
            ours = ("-m", "edge_sdk", "run", str(ready.devices[0].config), "--until-done", "--json")
            device = family.start("board", board.command(cpu, *ours), environ=board.environ(lock))
            pair.devices += [device, pair.start_device(ready.devices[1])]
            for _ in pair.watch(_LIMIT):
                pass
            code = device.wait(_LAST_CHOICE)
            return judged(code, device.tail(1))


def judged(code: int | None, last: str) -> str:
    """Return the result in the agent's last line.

    Raises:
        Wrong: Less than it must.
    """
    if code != 0:
        raise Wrong(f"the agent ended with {code}: {last}")
    document = json.loads(last)
    accepted, version, owed = (
        document["counts"].get("accepted"),
        document["version"],
        document["outbox"],
    )
    if (accepted, version, owed) != (_ROUNDS, _ROUNDS, 0):
        raise Wrong(f"{accepted} updates accepted, {owed} owed, at version {version} of {_ROUNDS}")
    return f"{accepted} of {_ROUNDS} updates accepted, beside a device of this machine"
