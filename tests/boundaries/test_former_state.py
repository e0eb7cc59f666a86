"""Databases, backups, bundles and device stores of 0.1 recompute to the same digests and go on.

``tests/vectors/store-0.1/README.md`` says how they were made.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from aggregator import config as configs
from aggregator.config import registry_of
from aggregator.extensions.audit.recompute import recompute
from aggregator.store import state_codec
from aggregator.store.opener import open_store
from edge_sdk import Reading
from edge_sdk.store.store import DeviceStore
from tests.fleet.conftest import World, history

FORMER = Path(__file__).parents[1] / "vectors" / "store-0.1"
DIGESTS = json.loads((FORMER / "digests.json").read_text("utf-8"))


def loads(number: int, hours: int = 200) -> Iterator[Reading]:
    for row in history(number, hours):
        if row.stream == "elec.import.energy":
            yield replace(row, stream="cell.internet.activity")


class FormerWorld(World):
    """A fleet whose files exist already."""

    def _found(self) -> None:
        self.config = self.folder / "aggregator.toml"


@pytest.fixture(params=sorted(DIGESTS))
def former(request, tmp_path) -> tuple[Path, dict]:
    with tarfile.open(FORMER / f"{request.param}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / request.param, DIGESTS[request.param]


def database(config: configs.AggregatorConfig, path: Path) -> dict[str, object]:
    bound = configs.bind(config)
    initial = bound.spec.shared(bound.bundle.initial)
    with open_store(path, read_only=True) as store:
        number = store.runs.latest().run
        audit = recompute(store, bound.half, initial, number)
        assert audit.is_sound, audit.faults
        state = state_codec.rebuild(bound.half.init(initial), store.states.load(number).leaves)
        settled = [
            [*key, row.digest.hex(), row.code] for key, row in store.ledgers.settled().items()
        ]
        return {
            "state": state_codec.digest(state).hex(),
            "events": audit.events,
            "rounds": audit.rounds,
            "versions": [
                [one.round, one.version, one.position, one.digest.hex()]
                for one in store.runs.versions(number)
            ],
            "settled": sorted(settled),
            "ledgers": {one.id: repr(store.ledgers.get(one.id)) for one in store.devices.all()},
        }


def device(folder: Path) -> dict[str, object]:
    with DeviceStore.open(folder, read_only=True) as store:
        learned = store.learned()
        leaves = {
            name: value.tobytes() if hasattr(value, "tobytes") else repr(value).encode()
            for name, value in learned.leaves.items()
        }
        return {
            "learned": [learned.run, learned.round, learned.version, digest(leaves)],
            "readings": digest({"rows": repr([*store.readings]).encode()}),
            "numbers": asdict(store.numbers()),
            "ledger": [asdict(charge) for charge in store.ledger()],
            "outbox": [[*one.key, hashlib.sha256(one.body).hexdigest()] for one in store.outbox()],
        }


def digest(parts: dict[str, bytes]) -> str:
    found = hashlib.sha256()
    for name, content in sorted(parts.items()):
        found.update(name.encode() + b"\0" + content)
    return found.hexdigest()


def test_former_files_recompute_to_the_same_digests(former):
    folder, expected = former
    config = configs.AggregatorConfig.load(folder / "aggregator.toml")
    assert database(config, config.database) == expected["database"]
    assert database(config, folder / "backup.db") == expected["backup"]
    for name, known in expected["devices"].items():
        assert device(folder / name) == known
    bundle = registry_of(config).open("load-mlp", 1)
    assert (bundle.manifest.name, len(bundle.initial)) == ("load-mlp", 8417)


def test_a_former_fleet_goes_on(former, monkeypatch):
    folder, expected = former
    monkeypatch.setattr("tests.fleet.conftest.history", loads)
    one = FormerWorld(folder, devices=len(expected["devices"]))
    one.clock.begun = expected["time"] / 1000
    try:
        one.start_all()
        one.until(lambda: one.version >= 4)
        assert one.daemon.metrics.refusals() == {}
        for name, known in expected["devices"].items():
            numbers = known["numbers"]
            now = next(c for c in one.clients.values() if c.config.id == name)._store.numbers()
            assert (now.life, now.seq) > (numbers["life"], numbers["seq"])
            assert now.spent > numbers["spent"]
    finally:
        one.close()
    config = configs.AggregatorConfig.load(folder / "aggregator.toml")
    after = database(config, config.database)
    assert (
        after["versions"][: len(expected["database"]["versions"])]
        == (expected["database"]["versions"])
    )
    assert after["rounds"] >= 4
