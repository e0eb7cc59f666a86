"""``make emulated``: checks of a device on an emulated Cortex-A53, with the lock file's wheels.

    python -m tools.emulated [--cpu cortex-a53] [--onnxruntime VERSION] [--json]

The first time it makes a board in ``.venv-arm64``, of Debian's packages and Python's wheels; no
root is needed. Where none can be made it says why and ends with 0. Where there is one it ends with
1 if a check fails, if the versions are not those of ``constraints/device.txt``, or if the emulated
core lets an engine live that is known to die on the real one: then it proves nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from edge_sdk.errors import Failure
from tools.emulated.board import FOLDER, LOCK, ROOT, Absent, Board, Unfit, pins
from tools.emulated.fleet import learned
from tools.emulated.probe import CHECKS
from tools.emulated.sealing import Wrong

CPU = "cortex-a53"
FATAL, LIVES = "1.21.0", "cortex-a76"
"""An engine that stops at an illegal instruction on small cores, and a core that has it."""

_ENGINE = "onnxruntime"
_IMPORT = ("-c", f"import {_ENGINE}")


@dataclass(slots=True)
class Found:
    """Results of the board."""

    cpu: str  # the emulated core
    # result of each check, in order, up to the first failure
    said: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)  # versions of the packages used
    # processor seconds by operation; ``here`` the same without an emulator
    pace: dict[str, float] = field(default_factory=dict)
    here: dict[str, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)  # reasons of a failure, a sentence each


def judged(cpu: str, done: subprocess.CompletedProcess[str], wanted: Mapping[str, str]) -> Found:
    """Read the output of a probe; ``wanted`` are the locked versions."""
    found = Found(cpu)
    for line in done.stdout.splitlines():
        document = json.loads(line)
        found.versions.update(document.get("versions", {}))
        found.pace.update(document.get("pace", {}))
        if "said" in document:
            found.said[document["check"]] = document["said"]
        if "wrong" in document:
            found.wrong.append(f"{document['check']}: {document['wrong']}")
    missing = [name for name in (*CHECKS, "the pace") if name not in found.said]
    if not found.wrong and (done.returncode or not found.pace or missing != ["the pace"]):
        found.wrong.append(f"{missing[0]}: {_ending(done)}")
    for name, version in found.versions.items():
        if wanted.get(name) != version:
            found.wrong.append(f"{name} {version} is not the locked one")
    return found


def _ending(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode < 0:
        number = signal.Signals(-done.returncode)
        return f"ended by {number.name} ({signal.strsignal(number)})"
    return (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]


def with_engine(lock: str, version: str) -> str:
    """Return the packages of a lock file with another version of the engine."""
    return "".join(f"{name}=={v}\n" for name, v in (pins(lock) | {_ENGINE: version}).items())


def here() -> dict[str, float]:
    """Return the durations on this machine, with the packages of this environment."""
    alone = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    probe = [sys.executable, "-m", "tools.emulated.probe"]
    done = subprocess.run(
        probe, cwd=ROOT, env=os.environ | alone, capture_output=True, text=True, check=False
    )
    return judged("", done, {}).pace


def page(found: Found) -> str:
    """Return tables: one check in each row, then durations relative to this machine."""
    rows = [f"on an emulated {found.cpu}", "", "| check | found |", "| --- | --- |"]
    rows += [f"| {name} | {said} |" for name, said in found.said.items()]
    ratios = {
        name: took / found.here[name] for name, took in found.pace.items() if name in found.here
    }
    if ratios:
        rows += [
            "",
            "| emulated, of the same here; not a board's speed | times |",
            "| --- | ---: |",
        ]
        rows += [f"| {name} | {ratio:.0f} |" for name, ratio in ratios.items()]
    return "\n".join([*rows, "", *(f"WRONG: {why}" for why in found.wrong)])


def _tried(args: argparse.Namespace) -> Found:
    board, lock = Board(args.board), LOCK.read_text("utf-8")
    if args.onnxruntime:
        lock = with_engine(lock, args.onnxruntime)
    board.make()
    board.install(lock)
    done = board.run(args.cpu, lock, "-m", "tools.emulated.probe")
    found = judged(args.cpu, done, pins(lock))
    if found.wrong:
        return found
    found.here = here()
    try:
        found.said["a run"] = learned(board, lock, args.cpu)
    except (Failure, Wrong) as error:
        found.wrong.append(f"a run: {error} {getattr(error, 'hint', '')}".strip())
    if not args.onnxruntime and args.cpu == CPU:
        _doubt(board, lock, found)
    return found


def _doubt(board: Board, lock: str, found: Found) -> None:
    """Run an engine that is known to fail: it must fail on this board only, or the board proves nothing."""
    fatal = with_engine(lock, FATAL)
    try:
        board.install(fatal)
    except Absent as why:
        found.said["can it fail?"] = f"not tried: {why}"
        return
    small, large = (board.run(cpu, fatal, *_IMPORT) for cpu in (CPU, LIVES))
    if small.returncode != -signal.SIGILL:
        found.wrong.append(f"{_ENGINE} {FATAL} met no illegal instruction on a {CPU}")
    elif large.returncode:
        found.wrong.append(f"{_ENGINE} {FATAL} {_ending(large)} on a {LIVES}")
    else:
        found.said["can it fail?"] = f"{_ENGINE} {FATAL} dies here, lives on a {LIVES}"


def main(argv: list[str] | None = None) -> int:
    """Run the probe, print its findings, and return an exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.emulated",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cpu", default=CPU, help=f"as the emulator names it ({CPU})")
    parser.add_argument("--onnxruntime", metavar="VERSION", help="another than the locked one")
    parser.add_argument("--board", type=Path, default=FOLDER, help=f"folder ({FOLDER.name})")
    parser.add_argument("--json", action="store_true", help="print all of it")
    args = parser.parse_args(argv)
    try:
        found = _tried(args)
    except Absent as why:
        print(f"emulated: skipped, no board here. {why}")
        return 0
    except Unfit as why:
        print(f"emulated: FAILED. {why}")
        return 1
    print(json.dumps(asdict(found)) if args.json else page(found))
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
