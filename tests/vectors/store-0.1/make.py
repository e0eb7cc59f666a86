"""Write the fixtures of this folder; run in a checkout of commit 4e908f7.

    PYTHONPATH=. python .../tests/vectors/store-0.1/make.py FOLDER

Each archive holds one small fleet, as ``tests/fleet`` runs it: on a loopback link, with a
clock of its own, stopped in the middle of a round. Each has a signed bundle in its registry, and
a backup beside the database.
"""

from __future__ import annotations

import hashlib
import json
import random
import secrets
import sqlite3
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from aggregator import config as configs
from aggregator.audit.recompute import recompute
from aggregator.commands import main as cli
from aggregator.store import state_codec
from aggregator.store.opener import open_store
from edge_sdk import Reading
from edge_sdk.store.store import DeviceStore
from firmware_sim.fleet.run_files import toml
from tests.fleet import conftest

NOISE = {
    "mode": "honest",
    "mechanism": {
        "name": "gaussian",
        "point": "update",
        "clip_norm": 0.1,
        "noise_multiplier": 1.0,
    },
    "budget": {"epsilon": 60.0, "delta": 1e-5},
}
ROUNDS = 2
LOADS = conftest.history
FLEETS = {
    "fedavg": (2, {"method": "fedavg", "bundle": "cells-mlp-1", "rounds": 4}),
    "fedbuff": (1, {"method": "fedbuff", "bundle": "cells-mlp-1", "rounds": 4}),
}


def main(folder: Path) -> None:
    """Write an archive for each fleet, and the digests of all."""
    found = {}
    for name, (devices, run) in FLEETS.items():
        with tempfile.TemporaryDirectory() as made:
            home = Path(made) / name
            home.mkdir()
            found[name] = fleet(home, devices, run)
            with tarfile.open(folder / f"{name}.tar.xz", "w:xz", preset=9) as archive:
                archive.add(home, name, filter=nobody)
    text = json.dumps(found, indent=1, sort_keys=True) + "\n"
    (folder / "digests.json").write_text(text, "utf-8")


def nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Return an entry without its owner and time; None for a lock or shared memory."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    return None if entry.name.endswith(("lock", "-shm")) else entry


def fleet(home: Path, devices: int, run: dict[str, object]) -> dict[str, object]:
    """Run a fleet until a device waits for a receipt; return the digests of what it left."""
    secrets.randbits = random.Random(1).getrandbits
    one = conftest.World(home, devices=devices, run=run, hours=200)
    for number in range(devices):
        path = home / f"home-{number}.toml"
        path.write_text(toml(tomllib.loads(path.read_text("utf-8")) | {"privacy": NOISE}))
    options = ["--config", str(one.config)]
    assert cli.main(["bundle", "promote", "load-mlp", *options]) == 0
    conftest.history = history
    one.start_all()
    one.until(lambda: one.version >= ROUNDS)
    one.until(lambda: any(client._store.outbox() for client in one.clients.values()))
    one.kill_daemon()
    for number in range(devices):
        one.die(number)
    assert cli.main(["backup", str(home / "backup.db"), *options]) == 0
    for path in home.rglob("*.db"):
        with sqlite3.connect(path, isolation_level=None) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            db.execute("VACUUM")
    config = configs.AggregatorConfig.load(one.config)
    return {
        "time": one.clock.wall(),
        "database": database(config, config.database),
        "backup": database(config, home / "backup.db"),
        "devices": {
            name: device(home / name)
            for name in sorted(f"home-{number}" for number in range(devices))
        },
    }


def history(number: int, hours: int) -> Iterator[Reading]:
    """Return the traffic of a cell."""
    for row in LOADS(number, hours):
        if row.stream == "elec.import.energy":
            yield replace(row, stream="cell.internet.activity")


def database(config: configs.AggregatorConfig, path: Path) -> dict[str, object]:
    """Return what a database records, and the digest to which its run is recomputed."""
    bound = configs.bind(config)
    initial = bound.spec.shared(bound.bundle.initial)
    with open_store(path, read_only=True) as store:
        number = store.run().run
        audit = recompute(store, bound.half, initial, number)
        assert audit.is_sound, audit.faults
        state = state_codec.rebuild(bound.half.init(initial), store.load(number).leaves)
        versions = [
            [one.round, one.version, one.position, one.digest.hex()]
            for one in store.versions(number)
        ]
        settled = [[*key, row.digest.hex(), row.code] for key, row in store.settled().items()]
        return {
            "state": state_codec.digest(state).hex(),
            "events": audit.events,
            "rounds": audit.rounds,
            "versions": versions,
            "settled": sorted(settled),
            "ledgers": {one.id: repr(store.ledger(one.id)) for one in store.clients()},
        }


def device(folder: Path) -> dict[str, object]:
    """Return the digests of a device's store."""
    with DeviceStore.open(folder, read_only=True) as store:
        learned = store.learned()
        assert learned is not None
        leaves = {
            name: value.tobytes() if hasattr(value, "tobytes") else repr(value).encode()
            for name, value in learned.leaves.items()
        }
        return {
            "learned": [learned.run, learned.round, learned.version, digest(leaves)],
            "readings": digest({"rows": repr([*store.readings()]).encode()}),
            "numbers": asdict(store.numbers()),
            "ledger": [asdict(charge) for charge in store.ledger()],
            "outbox": [[*one.key, hashlib.sha256(one.body).hexdigest()] for one in store.outbox()],
        }


def digest(parts: dict[str, bytes]) -> str:
    """Return the SHA-256 of named bytes."""
    found = hashlib.sha256()
    for name, content in sorted(parts.items()):
        found.update(name.encode() + b"\0" + content)
    return found.hexdigest()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
