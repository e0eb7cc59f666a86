"""How many updates a second can be committed, beside a bare file that is written and synced."""

import hashlib
import itertools
import os

import numpy as np
import pytest

from aggregator.store.ledgers import Ledger, LedgerRow
from aggregator.store.opener import open_store
from aggregator.store.types import EnrolledDevice
from edge_sdk.errors import Reason
from edge_sdk.protocol.contract.method import Update

pytestmark = pytest.mark.bench


def test_append(tmp_path, best, tell):
    rows = []
    for size in (5_760, 42_181):
        vector = np.random.default_rng(size).standard_normal(size).astype(np.float32)
        raw, numbers = vector.tobytes(), itertools.count(1)
        with (
            open_store(tmp_path / f"{size}.db") as store,
            (tmp_path / "bare").open("ab") as bare,
        ):
            store.devices.save(EnrolledDevice("meter-1", (bytes(32),)))

            def append(store=store, vector=vector, numbers=numbers):
                seq = next(numbers)
                row = LedgerRow(hashlib.sha256(str(seq).encode()).digest(), Reason.ACCEPTED, 1, seq)
                update = Update("meter-1", seq, seq - 1, vector, {"n": 64.0})
                return store.append("meter-1", Ledger(1, hid_life=1), (1, seq), row, update)

            def write(bare=bare, raw=raw):
                bare.write(raw)
                bare.flush()
                os.fsync(bare.fileno())

            assert append()[1] is not None
            ours, floor = best(append, seconds=1.0), best(write, seconds=1.0)
        rows.append((str(size), f"{1e3 * ours:.2f}", f"{1 / ours:.0f}", f"{ours / floor:.1f}"))
    head = ("scalars", "ms", "a second", "time / write and fsync")
    tell("one update journalled: ledger, row and vector in one synchronous transaction", head, rows)
