"""Sizes of a device's and an aggregator's file, with and without limits: a table for the docs.

    python tools/growth.py                                  # a year, and 100,000 updates
    python tools/growth.py --days 60 --updates 5000         # a quick look

Sizes are of files, the write-ahead log included. A device writes quarter-hourly readings once an
hour, perturbs them once a day, and pays for a round a day. An aggregator takes updates of a
hundred devices; the devices begin a new life every thousand rounds, as a restart makes them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from aggregator.extensions.audit.recompute import recompute
from aggregator.methods import METHODS, OPEN, Rounds, Setup
from aggregator.rules import bind
from aggregator.store import state_codec
from aggregator.store.ledgers import Ledger
from aggregator.store.ledgers import LedgerRow as Settled
from aggregator.store.opener import open_store
from aggregator.store.store import Store
from aggregator.store.types import JournalEntry, Retention, RunRecord, Version
from edge_sdk.forecasting.series import Reading, Series, SeriesRow
from edge_sdk.privacy.ledger import PrivacyCharge
from edge_sdk.protocol.contract.method import Closed, Update
from edge_sdk.store.store import DeviceStore
from edge_sdk.training.run_role import KeptHistory

STREAM, STEP, A_DAY = "elec.import.energy", 900, 96
BEGIN = 1_700_000_000 // 86_400 * 86_400
ROUND = PrivacyCharge(0, "device", "input", "gaussian", 5.0, releases=1)
DEVICES = 100


def device(folder: Path, days: int, history: KeptHistory | None) -> list[int]:
    """Run a device for some days; return the bytes of its file four times on the way.

    Args:
        history: Limit of the history; None keeps everything.
    """
    sizes, dropped = [], BEGIN // STEP
    with DeviceStore.open(folder) as store:
        store._db.execute("PRAGMA synchronous = OFF")  # noqa: SLF001 - the same bytes, sooner
        series = Series(STEP, [STREAM], capacity=history.slots if history else 10**6)
        for day in range(days):
            for slot in range(A_DAY):
                at = BEGIN + (day * A_DAY + slot) * STEP
                series.add(Reading(STREAM, at, 0.25 + slot / 1000))
                if slot % 4 == 3:
                    rows = series.pending()
                    before = None
                    if history and series.oldest >= dropped + history.batch:
                        before = dropped = series.oldest
                    store.add_readings(rows, before=before, step=STEP)
                    series.saved(rows)
            first = BEGIN // STEP + day * A_DAY
            noised = [SeriesRow(STREAM, first + slot, 0.3 + slot / 999) for slot in range(A_DAY)]
            store.add_noised(noised, ROUND)
            if (day + 1) % max(1, days // 4) == 0:
                sizes.append(store.size())
    return sizes[:4]


class Fleet:
    """An aggregator's store and the half that closes its rounds."""

    def __init__(self, store: Store, scalars: int, keep: Retention | None) -> None:
        self.store, self.scalars, self.keep = store, scalars, keep
        settings = METHODS["fedavg"].settings()
        self.half = METHODS["fedavg"].half(Setup(bind("mean"), settings, Rounds(quorum=DEVICES)))
        self.initial = np.zeros(scalars, np.float32)
        self.state = self.half.init(self.initial)
        self.saved = state_codec.flatten(self.state)
        store.begin(
            RunRecord(1, "fedavg", "{}", "toy", bytes(16), state_codec.layout(self.state)),
            self.saved,
        )
        self.take(store.journal.append(1, OPEN))

    def round(self, rng: np.random.Generator) -> None:
        """Record an update of every device."""
        number = self.state.round
        life, vectors = 1 + number // 1000, rng.normal(size=(DEVICES, self.scalars))
        for which, vector in enumerate(vectors.astype(np.float32)):
            name, key = f"meter-{which:04}", (life, number)
            update = Update(name, number, self.state.version, vector, {"n": 64.0, "loss": 0.5})
            row = Settled(rng.bytes(32), 0, 1, number)
            _, entry = self.store.append(name, Ledger(life, hid_life=life), key, row, update)
            if entry is not None:
                self.take(entry)

    def take(self, entry: JournalEntry) -> None:
        """Apply an event, and save the changes of a closed round."""
        assert entry.event is not None
        self.state, effects = self.half.apply(self.state, entry.event)
        closed = next((one for one in effects if isinstance(one, Closed)), None)
        if not effects:
            return
        version = None
        if closed is not None:
            said, digest = closed, state_codec.digest(self.state)
            version = Version(1, said.round, said.version, said.moved, digest, said.report)
        now = state_codec.flatten(self.state)
        self.store.commit(
            1, state_codec.changed(self.saved, now), entry.position, closed=version, keep=self.keep
        )
        self.saved = now


def aggregator(
    folder: Path, updates: int, scalars: int, keep: Retention | None
) -> tuple[list[int], str]:
    """Apply updates to an aggregator; return the bytes of its file on the way, and the rest."""
    rng, sizes, rounds = np.random.default_rng(1), [], updates // DEVICES
    with open_store(folder / "aggregator.db") as store:
        fleet, begun = Fleet(store, scalars, keep), time.process_time()
        for number in range(rounds):
            with store.transaction():  # one for each round: the same bytes, sooner
                fleet.round(rng)
            if (number + 1) % max(1, rounds // 4) == 0:
                sizes.append(store.size())
        each = 1e6 * (time.process_time() - begun) / (rounds * DEVICES)
        used = store.retention.used()
        found = recompute(store, fleet.half, fleet.initial)
    assert found.is_sound, found.faults
    audit = f"rounds {found.since + 1} to {found.since + found.rounds}"
    text = f"vectors {used['vectors']:,}, journal {used['journal']:,}; audit {audit}"
    return sizes[:4], f"{text}; {each:.0f} us of processor an update"


def line(what: str, sizes: Sequence[int], more: str = "") -> str:
    return f"| {what} | " + " | ".join(f"{size:,}" for size in sizes) + f" | {more} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--keep-days", type=float, default=90.0)
    parser.add_argument("--updates", type=int, default=100_000)
    parser.add_argument("--scalars", type=int, default=250)
    parser.add_argument(
        "--vectors", type=int, default=20_000_000, help="bytes: retention.vector_bytes"
    )
    parser.add_argument(
        "--journal", type=int, default=10_000_000, help="bytes: retention.journal_bytes"
    )
    options = parser.parse_args(arguments)
    history = KeptHistory(int(options.keep_days * A_DAY), STEP, 2)
    keep = Retention(options.vectors, options.journal)
    print(
        f"| a device's file, bytes after | {' | '.join(_quarters(options.days, 'days'))} | bound |"
    )
    print("| --- " * 6 + "|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(line("without bounds", device(folder / "a", options.days, None), "none"))
        ring = device(folder / "b", options.days, history)
        print(line(f"history_days = {options.keep_days:g}", ring, f"{history.bytes:,} of readings"))
        print()
        quarters = " | ".join(_quarters(options.updates, "updates"))
        print(f"| an aggregator's file, bytes after | {quarters} | at the end |")
        print("| --- " * 6 + "|")
        for what, kept in (("without bounds", None), ("with bounds", keep)):
            there = folder / what
            print(
                line(what, *aggregator(there, options.updates, options.scalars, kept)), flush=True
            )
    return 0


def _quarters(whole: int, unit: str) -> list[str]:
    return [f"{whole * part // 4:,} {unit}" for part in (1, 2, 3, 4)]


if __name__ == "__main__":
    sys.exit(main())
