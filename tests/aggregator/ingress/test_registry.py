"""Who may speak, and with which key."""

import pytest

from aggregator.ingress.cohort import Cohort
from aggregator.ingress.registry import Registry
from aggregator.store.opener import open_store
from aggregator.store.types import EnrolledDevice
from edge_sdk.errors import Refused
from edge_sdk.protocol.keys import from_seed, kid_of


def test_keys_are_found_by_their_id_and_only_for_their_device(tmp_path):
    old, new = from_seed(bytes(32)), from_seed(b"n" * 32)
    with open_store(tmp_path / "fleet.db") as store:
        registry = Registry(store)
        registry.enrol(EnrolledDevice("m-1", (old.public, new.public)))
        registry.enrol(EnrolledDevice("m-2", (from_seed(b"2" * 32).public,)))
        assert registry.key_of("m-1", kid_of(old.public)) == old.public
        assert registry.key_of("m-1", kid_of(new.public)) == new.public
        assert registry.key_of("m-2", kid_of(new.public)) is None
        registry.enrol(EnrolledDevice("m-1", (new.public,), 2))
        assert registry.key_of("m-1", kid_of(old.public)) is None
        registry.revoke("m-1", "sold")
        with pytest.raises(Refused, match="REVOKED"):
            registry.key_of("m-1", kid_of(new.public))
        assert len(registry) == 1
        registry.quarantine("m-2", "fork")
        registry.quarantine("m-2", "again")
        assert [c.why for c in registry.clients()] == ["sold", "fork"]
        registry.release("m-2")
        assert not registry.is_quarantined("m-2")


def test_whether_one_device_is_shut_out_agrees_with_the_set_of_all(tmp_path):
    meter, cell = (("kind", "meter"),), (("kind", "cell"),)
    with open_store(tmp_path / "fleet.db") as store:
        registry = Registry(store)
        for number, labels in enumerate([meter, meter, meter, cell]):
            public = from_seed(bytes([number]) * 32).public
            registry.enrol(EnrolledDevice(f"m-{number}", (public,), labels=labels))
        registry.quarantine("m-1", "fork")
        registry.revoke("m-2", "sold")
        cohort = Cohort(registry, {"kind": "meter"})
        assert cohort.shut_out() == {"m-1", "m-2", "m-3"}
        for device in ("m-0", "m-1", "m-2", "m-3", "unknown"):
            assert cohort.is_shut_out(device) == (device in cohort.shut_out())
