"""Programs of the chaos test: a broker, an aggregator, proxies, and processes of ten devices each."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from edge_sdk.errors import Failure
from firmware_sim.fleet.federation import START_TIMEOUT, fetched, free_port, start_broker
from firmware_sim.fleet.processes import ProcessGroup, RunningProgram, command
from firmware_sim.fleet.run_files import Prepared, prepare
from firmware_sim.samples import sample_set
from firmware_sim.scenario import RunSettings, Scenario
from tools.chaos.device_processes import HISTORY_UNTIL

FLEET = "storm"
PER_PROCESS = 10
_TIMEOUTS = 'timeouts = { reply = "500ms", retained_model = "1s" }\n'
_MEBI = 2**20


class Mount:
    """A small mounted disk, if this machine permits it; ``why_not`` is the reason if it does not.

    Its space can be taken and given back.
    """

    def __init__(self, folder: Path, mebibytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._ballast = folder, folder / "ballast"
        asked = [
            shutil.which("mount") or "mount",
            "-t",
            "tmpfs",
            "-o",
            f"size={mebibytes}m,mode=0700",
            "tmpfs",
            str(folder),
        ]
        try:
            done = subprocess.run(asked, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            self.why_not = "no program `mount`"
        else:
            self.why_not = done.stderr.strip() if done.returncode else ""

    def fill(self) -> None:
        with self._ballast.open("ab", buffering=0) as out:
            for size in (_MEBI, 4096, 1):
                try:
                    while True:
                        out.write(bytes(size))
                except OSError:
                    continue

    def free(self) -> None:
        """Free the space that ``fill`` took."""
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount, even with open files."""
        if not self.why_not:
            program = shutil.which("umount") or "umount"
            subprocess.run([program, "-l", str(self.folder)], check=False)


@dataclass
class World:
    """All running programs, and their restarts."""

    family: ProcessGroup  # process group of the programs; its owner stops what is left
    folder: Path
    devices: int
    seed: int
    kind: str
    quorum: int
    deadline: str
    prepared: Prepared = field(init=False)
    aggregator: RunningProgram = field(init=False)
    processes: list[RunningProgram] = field(default_factory=list)
    # programs that ended without being killed by the test, by name
    alone: dict[str, int] = field(default_factory=dict)
    doomed: set[int] = field(default_factory=set)  # pids that we killed ourselves

    def start(self) -> None:
        self.server_disk = Mount(self.folder / "fleet" / "aggregator", 1024)
        self.device_disk = Mount(self.folder / "process-disk", 64)
        self.url = start_broker(self.family, self.folder / "broker", self.kind)
        self.broker = self.family.members[-1]
        first, names = free_port(4), ("control", "devices", "aggregator", "page")
        self.ports = {name: first + i for i, name in enumerate(names)}
        wires = [f"{name}={self.ports[name]}" for name in ("devices", "aggregator")]
        parts = [self.url.rpartition(":")[2], str(self.ports["control"]), *wires]
        self._module("wires", "tools.chaos.wires", *parts)
        self._prepare()
        self.start_aggregator()
        until = time.monotonic() + START_TIMEOUT  # else two hundred devices begin by waiting for it
        while self.version() is None and time.monotonic() < until:
            time.sleep(0.1)
        for number in range(-(-self.devices // PER_PROCESS)):
            self.processes.append(self._run_devices(number))

    def _prepare(self) -> None:
        settings = {"steps": 2, "rate": 0.001}
        learning = RunSettings("fedbuff", ("",), 100_000, settings, self.quorum, self.deadline)
        chosen = Scenario(
            "chaos",
            devices=self.devices,
            bundle="load-mlp",
            run=learning,
            until=HISTORY_UNTIL,
        )
        page, broker = f"127.0.0.1:{self.ports['page']}", self._via("devices")
        fleet = self.folder / "fleet"
        self.prepared = prepare(fleet, FLEET, chosen, sample_set("homes"), broker=broker, page=page)
        config = self.prepared.aggregator
        config.write_text(config.read_text().replace(broker, self._via("aggregator")))
        for number, device in enumerate(self.prepared.devices):
            text = _TIMEOUTS + re.sub(r"(?m)^timeouts = .*\n", "", device.config.read_text())
            if number < PER_PROCESS and not self.device_disk.why_not:
                own = f'state = "{self.device_disk.folder.absolute() / device.id}"'
                text = text.replace(f'state = "{device.id}"', own)
            device.config.write_text(text)
        for number in range(-(-self.devices // PER_PROCESS)):
            self._plan(number)

    def _via(self, wire: str) -> str:
        return f"mqtt://127.0.0.1:{self.ports[wire]}"

    def _plan(self, number: int) -> None:
        members = self.prepared.devices[number * PER_PROCESS : (number + 1) * PER_PROCESS]
        plan = {
            "devices": [str(device.config) for device in members],
            "of": self.devices,
            "diaries": str(self.diaries),
            "aggregator": str(self.prepared.folder / "aggregator" / "aggregator.pub"),
            "orders": str(self.folder / f"process-{number}.off"),
            "hush": str(self.folder / "hush"),
            "status": str(self.folder / f"process-{number}.json"),
            "seed": self.seed + number,
        }
        (self.folder / f"process-{number}.plan").write_text(json.dumps(plan))

    @property
    def diaries(self) -> Path:
        return self.folder / "diaries"

    # --- starting again

    def start_broker(self) -> None:
        """Start the broker on its port again."""
        port, folder = self.url.rpartition(":")[2], str(self.folder / "broker")
        options = ("--kind", self.kind, "--port", port, "--folder", folder)
        arguments = command("gridfed-aggregator", "broker", "start", *options)
        self.broker = self.family.start("broker", arguments)

    def start_aggregator(self) -> None:
        """Start the aggregator; restart it if it ended."""
        arguments = command("gridfed-aggregator", "run", str(self.prepared.aggregator))
        self.aggregator = self.family.start("aggregator", arguments)

    def start_devices(self, number: int) -> None:
        self.processes[number] = self._run_devices(number)

    def _run_devices(self, number: int) -> RunningProgram:
        """Run a process of ten devices; every second process uses the numpy engine."""
        engine = {"GRIDFED_ENGINE": "numpy"} if number % 2 else {}
        plan = str(self.folder / f"process-{number}.plan")
        return self._module(
            f"process-{number}", "tools.chaos.device_processes", plan, environ=engine
        )

    def _module(self, name: str, module: str, *words: str, environ: Any = None) -> RunningProgram:  # noqa: ANN401
        root = str(Path(__file__).resolve().parents[2])
        path = {"PYTHONPATH": root, **(environ or {})}
        return self.family.start(name, [sys.executable, "-m", module, *words], environ=path)

    # --- watching

    def kill(self, program: RunningProgram) -> None:
        """Send SIGKILL, and remove the program."""
        self.doomed.add(program.process.pid)
        program.signal(signal.SIGKILL)
        program.wait(10)
        self.family.members.remove(program)

    def tend(self) -> None:
        """Restart programs that ended by themselves, as a service manager does, and record them."""
        processes = enumerate(self.processes)
        watched: list[tuple[str, RunningProgram, Callable[[], None]]] = [
            ("broker", self.broker, self.start_broker),
            ("aggregator", self.aggregator, self.start_aggregator),
            *(
                (f"process-{n}", process, partial(self.start_devices, n))
                for n, process in processes
            ),
        ]
        for name, program, again in watched:
            if program.poll() is None or program.process.pid in self.doomed:
                continue
            words = f"{name} ended with {program.code}: {program.tail(2)}"
            self.alone[words] = self.alone.get(words, 0) + 1
            self.family.members.remove(program)
            again()

    def version(self) -> int | None:
        """Return the number of model moves; None while the page does not answer."""
        page = fetched(self.prepared.page, "/status")
        run = {} if page is None else json.loads(page).get("run", {})
        return int(run["version"]) if "version" in run else None

    def device_status(self) -> list[dict[str, Any]]:
        files = (self.folder / f"process-{n}.json" for n in range(len(self.processes)))
        return [json.loads(f.read_text()) if f.exists() else {"owed": -1} for f in files]

    def settle(self, limit: float) -> float:
        """Stop new work, and wait until no device has pending messages; return the seconds.

        Raises:
            Failure: Somebody still does.
        """
        (self.folder / "hush").touch()
        began = time.monotonic()
        while time.monotonic() - began < limit:
            self.tend()
            said, fresh = self.device_status(), time.time() - 5
            if all(one["owed"] == 0 and one["time"] > fresh for one in said):
                return time.monotonic() - began
            time.sleep(0.5)
        owing = [(n, one) for n, one in enumerate(self.device_status()) if one["owed"]]
        raise Failure(f"after {limit:.0f} s of calm, devices still owe updates: {owing}")

    def close(self) -> None:
        for disk in (self.server_disk, self.device_disk):
            disk.close()


def opened(port: int, count: int) -> list[socket.socket]:
    """Open sockets without sending."""
    return [socket.create_connection(("127.0.0.1", port), 2.0) for _ in range(count)]


def answers(port: int, path: str) -> bool:
    return fetched(f"127.0.0.1:{port}", path) is not None


def is_listening(port: int) -> bool:
    """Return True if a port accepts connections."""
    with closing(socket.socket()) as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0
