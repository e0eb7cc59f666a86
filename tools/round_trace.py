"""Break down the time of a round, measured in the real programs over a real broker.

    python tools/round_trace.py                                # ten devices, four steps, all layers
    python tools/round_trace.py --folder /var/tmp --rounds 60   # stores on a disk instead of memory

Every program runs as installed, with a probe around some functions that adds up the processor and
wall time spent in each, less that of the probed functions inside. The monotonic clock is the same
in all processes of a machine, so the programs' marks make one timeline of each round.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

SKIPPED = 10
"""Rounds at the start that are not counted: imports, planning of graphs, the first connection."""

OTHER = "everything else"

EDGE, HERE = "edge_sdk", "aggregator"
COMMON = (
    (f"{EDGE}.protocol.envelope:check_proof", "verify signatures"),
    (f"{EDGE}.protocol.envelope:prove", "sign"),
    (f"{EDGE}.protocol.envelope:digest", "SHA-256"),
    (f"{EDGE}.protocol.codec:decode", "decode messages"),
    (f"{EDGE}.protocol.codec:encode", "encode messages"),
    ("selectors:EpollSelector.select", "wait for the link"),
    (f"{EDGE}.link.mqtt:MqttLink.poll", "MQTT, both ways"),
    (f"{EDGE}.link.mqtt:MqttLink.publish", "MQTT, both ways"),
    (f"{EDGE}.link.mqtt:MqttLink.acknowledge", "MQTT, both ways"),
)
"""Functions of both programs, each with the activity of its time."""

DEVICE = (
    (f"{EDGE}.training.model_runtime:ModelRuntime.learn", "local steps"),
    (f"{EDGE}.training.active_run:ActiveRun.fault_of", "check the parameters"),
    (f"{EDGE}.training.training_transaction:UpdateSealer.seal", "encode the update"),
    (f"{EDGE}.store.store:DeviceStore.save", "commit the round"),
    (f"{EDGE}.store.store:DeviceStore.keep", "commit the outbox"),
    (f"{EDGE}.store.store:DeviceStore.set_facts", "commit serials"),
    (f"{EDGE}.session.session:Session.serve", "session"),
)
AGGREGATOR = (
    (f"{HERE}.store.transactions:Transactions._commit", "commit"),
    (f"{HERE}.store.sqlite:SqliteStore.append", "journal rows"),
    (f"{HERE}.store.sqlite:SqliteStore.commit", "state rows"),
    (f"{HERE}.ingress.update_admission:UpdateAdmission.update", "admission"),
    (f"{HERE}.ingress.message_ingress:MessageIngress.receive", "ingress"),
    (f"{HERE}.rounds.round_engine:RoundEngine.apply", "round engine, rule"),
    (f"{HERE}.rounds.run_announcer:RunAnnouncer.announcements", "build announcements"),
    (f"{HERE}.rounds.publisher:Publisher.flush", "publish queue"),
)
MARKS = (
    "manifest received",
    "model complete",
    "update saved",
    "offer received",
    "update settled",
    "receipt received",
)
"""Marks of a device's round, in order; seconds after the last round's closing."""


class Probe:
    """Adds up exclusive times by activity, and keeps marks, in one process."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = defaultdict(float)
        self.cpu: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self.marks: list[tuple[str, int, str, float]] = []
        self._stack: list[list[float]] = []
        self._begun = (0.0, 0.0)
        self._totals = (0.0, 0.0)
        self._thread = threading.get_ident()
        self.rounds = 0
        self.is_counting = False

    def switch(self, *, on: bool) -> None:
        """Begin or end to count."""
        self.is_counting = on
        now = (time.perf_counter(), time.thread_time())
        if on:
            self._begun = now
        else:
            self._totals = (now[0] - self._begun[0], now[1] - self._begun[1])

    def mark(self, name: str, round_: int, device: str) -> None:
        self.marks.append((name, round_, device, time.monotonic()))

    def wrap(self, path: str, activity: str) -> None:
        """Count the time of a function under an activity."""
        owner, name = _found(path)
        function = getattr(owner, name)
        setattr(owner, name, self._timed(function, activity))

    def _timed(self, function: Callable[..., Any], activity: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - of any function
            if threading.get_ident() != self._thread:  # the status page has its own
                return function(*args, **kwargs)
            result, spent, used = None, time.perf_counter(), time.thread_time()
            self._stack.append([0.0, 0.0])
            try:
                result = function(*args, **kwargs)
            finally:
                spent, used = time.perf_counter() - spent, time.thread_time() - used
                inner = self._stack.pop()
                if self.is_counting:
                    self.wall[activity] += spent - inner[0]
                    self.cpu[activity] += used - inner[1]
                    self.calls[activity] += 1
                if self._stack:
                    self._stack[-1][0] += spent
                    self._stack[-1][1] += used
            return self._drained(result, activity) if isinstance(result, Iterator) else result

        return timed

    def _drained(self, results: Iterator[Any], activity: str) -> Iterator[Any]:
        step, done = self._timed(next, activity), object()
        while (item := step(results, done)) is not done:
            yield item

    def document(self) -> dict[str, Any]:
        """Return everything counted."""
        return {
            "wall": self.wall,
            "cpu": self.cpu,
            "calls": self.calls,
            "totals": self._totals,
            "rounds": self.rounds,
            "marks": self.marks,
        }


def _found(path: str) -> tuple[Any, str]:
    module, _, name = path.partition(":")
    owner: Any = importlib.import_module(module)
    *outer, last = name.split(".")
    for part in outer:
        owner = getattr(owner, part)
    return owner, last


def _after(path: str, do: Callable[..., None]) -> None:
    owner, name = _found(path)
    function = getattr(owner, name)

    @functools.wraps(function)
    def followed(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - of any function
        result = function(*args, **kwargs)
        do(result, *args)
        return result

    setattr(owner, name, followed)


def watch_device(probe: Probe, rounds: int) -> None:
    """Place the marks of a device."""

    def manifest(_result: object, _inbox: object, message: Any, **_: object) -> None:  # noqa: ANN401
        probe.mark("manifest received", message.round, "")

    def model(_result: object, _inbox: object, completed: Any) -> None:  # noqa: ANN401
        probe.mark("model complete", getattr(completed.manifest, "round", 0), "")

    def saved(_result: object, _outbox: object, entry: Any, *_: object) -> None:  # noqa: ANN401
        probe.mark("update saved", entry.round, "")
        _count(probe, entry.round, rounds)

    def settled(_result: object, _outbox: object, note: Any) -> None:  # noqa: ANN401
        if hasattr(note, "entry"):
            probe.mark("receipt received", note.entry.round, "")

    _after(f"{EDGE}.session.task_inbox:TaskInbox.receive_model", manifest)
    _after(f"{EDGE}.session.task_inbox:TaskInbox.downloaded", model)
    _after(f"{EDGE}.session.durable_outbox:DurableOutbox.release", saved)
    _after(f"{EDGE}.session.durable_outbox:DurableOutbox._note", settled)


def watch_aggregator(probe: Probe, rounds: int) -> None:
    """Place the marks of the aggregator."""

    def offered(_result: object, _ingress: object, sealed: Any, offer: Any, *_: object) -> None:  # noqa: ANN401
        probe.mark("offer received", offer.round, sealed.sender)

    def admitted(_result: object, _ingress: object, sealed: Any, update: Any, *_: object) -> None:  # noqa: ANN401
        probe.mark("update settled", update.round, sealed.sender)

    def closed(result: Any, *_: object) -> None:  # noqa: ANN401
        if result.closed is not None:
            probe.mark("round closed", result.closed.round, "")
            _count(probe, result.closed.round, rounds)

    _after(f"{HERE}.ingress.update_ingress:UpdateIngress.offer", offered)
    _after(f"{HERE}.ingress.update_admission:UpdateAdmission.update", admitted)
    _after(f"{HERE}.rounds.round_engine:RoundEngine.apply", closed)


def _count(probe: Probe, round_: int, rounds: int) -> None:
    if round_ == SKIPPED:
        probe.switch(on=True)
    elif probe.is_counting and round_ > SKIPPED:
        probe.rounds += 1
        if round_ == rounds - 1:
            probe.switch(on=False)


def probed(target: Path, package: str, rounds: int, arguments: Sequence[str]) -> int:
    """Run one program with a probe, and write its counts."""
    probe = Probe()
    is_device = package == EDGE
    for path, activity in (*COMMON, *(DEVICE if is_device else AGGREGATOR)):
        probe.wrap(path, activity)
    (watch_device if is_device else watch_aggregator)(probe, rounds)
    main = importlib.import_module(f"{package}.commands.main").main
    try:
        return int(main(list(arguments)))
    finally:
        target.write_text(json.dumps(probe.document()), encoding="utf-8")


def traced(args: argparse.Namespace, folder: Path) -> list[tuple[str, dict[str, Any]]]:
    """Run a fleet with probes; return the counts of each program, the aggregator's first."""
    from firmware_sim.fleet import federation as fleet  # noqa: PLC0415 - not in the probed program
    from firmware_sim.fleet.processes import ProcessGroup  # noqa: PLC0415
    from firmware_sim.fleet.run_files import prepare  # noqa: PLC0415
    from firmware_sim.samples import sample_set  # noqa: PLC0415
    from firmware_sim.scenario import RunSettings, Scenario  # noqa: PLC0415

    def probing(package: str, name: str, config: Path) -> list[str]:
        options = ["--probe", str(folder / f"{name}.json"), "--package", package]
        program = [sys.executable, __file__, *options, "--rounds", str(args.rounds), "--"]
        until_done = ["--until-done", "--json"] if package == EDGE else []
        return [*program, "run", str(config), *until_done]

    learning = RunSettings(rounds=args.rounds, shared=("",), settings={"steps": args.steps})
    chosen = Scenario("trace", devices=args.devices, bundle=args.bundle, run=learning)
    with ProcessGroup(folder / "logs") as family:
        url, page = fleet.start_broker(family, folder / "broker"), f"127.0.0.1:{fleet.free_port()}"
        prepared = prepare(
            folder / "fleet", "trace", chosen, sample_set("homes"), broker=url, page=page
        )
        server = family.start(HERE, probing(HERE, HERE, prepared.aggregator))
        until = time.monotonic() + fleet.START_TIMEOUT
        while fleet.fetched(page, "/status") is None and time.monotonic() < until:
            family.require_running()
            time.sleep(0.05)
        devices = [
            family.start(one.id, probing(EDGE, one.id, one.config)) for one in prepared.devices
        ]
        run = fleet.Federation(prepared, args.rounds, family, server, devices)
        for _ in run.watch(args.limit):
            pass
        for device in run.devices:
            device.wait(fleet.FINISH_TIMEOUT)
        run.stop()
    names = [HERE, *(device.id for device in prepared.devices)]
    return [(name, json.loads((folder / f"{name}.json").read_text("utf-8"))) for name in names]


def timeline(counted: list[tuple[str, dict[str, Any]]]) -> dict[str, tuple[float, float, float]]:
    """Return for each mark the first, median and last device, in ms after the round opened.

    The median over the rounds. A round opens when the former one has closed.
    """
    closed: dict[int, float] = {}
    seen: dict[tuple[str, int], list[float]] = defaultdict(list)
    for _, one in counted:
        for name, round_, _device, at in one["marks"]:
            if name == "round closed":
                closed[round_] = at
            else:
                seen[name, round_].append(at)
    rows: dict[str, tuple[float, float, float]] = {}
    used = [n for n in sorted(closed) if n - 1 in closed and n > SKIPPED]
    for name in MARKS:
        offsets = [
            sorted(1e3 * (at - closed[n - 1]) for at in seen[name, n])
            for n in used
            if seen[name, n]
        ]
        if offsets:
            rows[name] = (
                statistics.median(one[0] for one in offsets),
                statistics.median(statistics.median(one) for one in offsets),
                statistics.median(one[-1] for one in offsets),
            )
    walls = [1e3 * (closed[n] - closed[n - 1]) for n in used]
    rows["round closed"] = (min(walls), statistics.median(walls), max(walls))
    return rows


def breakdown(documents: Sequence[dict[str, Any]]) -> dict[str, tuple[float, float, float]]:
    """Return wall ms, processor ms and calls by activity, a program and round, longest first."""
    rows: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for one in documents:
        share = len(documents) * max(1, one["rounds"])
        rest = list(one["totals"])
        for activity, wall in one["wall"].items():
            row, cpu = rows[activity], one["cpu"][activity]
            row[0] += 1e3 * wall / share
            row[1] += 1e3 * cpu / share
            row[2] += one["calls"][activity] / share
            rest = [rest[0] - wall, rest[1] - cpu]
        rows[OTHER][0] += 1e3 * rest[0] / share
        rows[OTHER][1] += 1e3 * rest[1] / share
    found = {name: (row[0], row[1], row[2]) for name, row in rows.items()}
    return dict(sorted(found.items(), key=lambda item: -item[1][1]))


def show(counted: list[tuple[str, dict[str, Any]]]) -> None:
    """Print the timeline and the activities of both programs as Markdown tables."""
    print(
        "\n| after the round opened, ms | first device | median | last device |\n|---|---|---|---|"
    )
    for name, row in timeline(counted).items():
        head = f"{name} (shortest, median, longest round)" if name == "round closed" else name
        print(f"| {head} | " + " | ".join(f"{value:.1f}" for value in row) + " |")
    parts = (("a device", counted[1:]), ("the aggregator", counted[:1]))
    for who, some in parts:
        print(f"\n| {who}, a round | processor, ms | wall, ms | calls |\n|---|---|---|---|")
        rows = breakdown([one for _, one in some])
        for activity, (wall, cpu, calls) in rows.items():
            print(f"| {activity} | {cpu:.2f} | {wall:.2f} | {f'{calls:.1f}' if calls else ''} |")
        print(f"| sum | {sum(r[1] for r in rows.values()):.2f} | "
              f"{sum(r[0] for r in rows.values()):.2f} | |")  # fmt: skip


def options() -> argparse.Namespace:
    """Read the command line."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    add = parser.add_argument
    add("--bundle", default="load-lstm-week", help="a shipped bundle (load-lstm-week)")
    add("--devices", type=int, default=10, help="processes (10)")
    add("--rounds", type=int, default=40, help=f"of them {SKIPPED} are not counted (40)")
    add("--steps", type=int, default=4, help="local steps a round (4)")
    add("--folder", type=Path, help="where the stores are; by default memory, if there is /dev/shm")
    add("--limit", type=float, default=300.0, help="longest run, s (300)")
    add("--json", type=Path, help="write the numbers there")
    add("--probe", type=Path, help=argparse.SUPPRESS)
    add("--package", help=argparse.SUPPRESS)
    add("program", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rounds < SKIPPED + 4:
        parser.error(f"--rounds {args.rounds}: at least {SKIPPED + 4} are needed")
    return args


def main() -> int:
    """Measure and print."""
    args = options()
    if args.probe is not None:
        return probed(args.probe, args.package, args.rounds, args.program)
    memory = Path("/dev/shm")  # noqa: S108 - a private folder is made below it
    within = args.folder or (memory if os.access(memory, os.W_OK) else None)
    with tempfile.TemporaryDirectory(dir=within) as folder:
        counted = traced(args, Path(folder))
    show(counted)
    if args.json:
        found = {"timeline": timeline(counted), "device": breakdown([d for _, d in counted[1:]])}
        found["aggregator"] = breakdown([counted[0][1]])
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
