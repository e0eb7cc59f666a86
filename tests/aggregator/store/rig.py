"""What the tests of the store write into it."""

import numpy as np

from aggregator.store.ledgers import Ledger, LedgerRow
from aggregator.store.types import RunRecord
from edge_sdk.protocol.contract.method import Update

RUN = RunRecord(1, "fedavg", "{}", "toy", bytes(16), bytes(16))


def update(sender="m-1", round_number=1, vector=(1.0, 2.0)):
    values = {"n": 3.0, "loss": 0.125}
    return Update(sender, round_number, 0, np.array(vector, np.float32), values)


def settle(store, key=(1, 1), sender="m-1", round_number=1, digest=b"d" * 32):
    row = LedgerRow(digest, 0, 1, round_number)
    return store.append(sender, Ledger(cur=1), key, row, update(sender, round_number))


def begin(store):
    store.begin(RUN, {"w": np.zeros(2), "round": 0, "pending.a": 1.0})
