"""Another database needs no change of the daemon: rounds on a store in memory end the same."""

import numpy as np
import pytest

from aggregator.config import bind
from aggregator.daemon import Daemon
from aggregator.operations.run_setup import set_up
from aggregator.operations.signing_keys import RootSigners
from aggregator.store import state_codec
from aggregator.store.sqlite import in_memory
from aggregator.store.types import EnrolledDevice
from edge_sdk.protocol import keys
from edge_sdk.protocol.messages import ReceiptMessage
from firmware_sim.testing.loopback import LoopbackBroker
from tests.aggregator.conftest import ONLINE, ROOT


def played(config, store, puppets, clock):
    """Three rounds of two devices; the digests of their states, and the last model."""
    broker = LoopbackBroker()
    with Daemon(config, transport=broker.link("_agg"), clock=clock, store=store) as daemon:
        daemon.turn()
        crew = puppets(broker)
        for puppet in crew:
            puppet.hello(1)

        def turns():
            for _ in range(6):
                daemon.turn()
                for puppet in crew:
                    puppet.poll()

        turns()
        for number in range(3):
            for puppet, delta in zip(crew, ([0.5, 0.25], [1.5, -1.0]), strict=True):
                puppet.answer([one / (number + 1) for one in delta])
            turns()
            assert [puppet.last(ReceiptMessage).code for puppet in crew] == [0, 0]
        closed = [v.digest for v in daemon._store.runs.versions(1)]
        return closed, state_codec.digest(daemon.state), daemon.state.w


def test_a_run_on_a_store_in_memory_has_the_digests_of_one_on_sqlite(founded, puppets, still_clock):
    config = founded("rounds = 9")
    memory, run = in_memory(), bind(config)
    set_up(run, memory, root=RootSigners.of(ROOT), online=ONLINE.public, now=1_800_000_000_000)
    for i in (1, 2, 3):
        public = keys.from_seed(bytes([i]) * 32).public
        memory.devices.save(EnrolledDevice(f"meter-{i}", (public,)))
    on_disk = played(config, None, puppets, still_clock)
    held = played(config, memory, puppets, still_clock)
    assert len(on_disk[0]) == 3
    assert held[:2] == on_disk[:2]
    np.testing.assert_array_equal(held[2], on_disk[2])


def test_a_failed_transaction_changes_nothing_in_memory_either():
    store = in_memory()
    with pytest.raises(ZeroDivisionError), store.transaction():  # noqa: PT012
        store.devices.save(EnrolledDevice("meter-1", (bytes(32),)))
        raise ZeroDivisionError
    assert store.devices.all() == []
