"""Orders reach the store once or twice, never half, and never ill-formed."""

import os
from dataclasses import replace

import pytest

from aggregator.operations.commands import OrderError
from aggregator.operations.control_queue import (
    ControlOrder,
    KnownDevices,
    apply,
    carry_out,
    check_order,
    check_orders,
    leave,
    waiting,
)
from aggregator.store.opener import open_store
from edge_sdk.protocol import keys

PUBLIC, OTHER = "01" * 32, "02" * 32


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "fleet.db") as opened:
        yield opened


def states(store):
    return {client.id: (client.state, client.generation) for client in store.devices.all()}


def test_enrolling_twice_is_enrolling_once(store):
    order = ControlOrder("enrol", "meter-1", public=PUBLIC)
    assert apply(order, store) == "meter-1 is enrolled"
    assert apply(order, store) == "meter-1 is already enrolled with this key"
    assert states(store) == {"meter-1": ("enrolled", 1)}


@pytest.mark.parametrize("op", ["wipe", "reenrol"])
def test_an_order_that_destroys_is_refused_without_the_roots_signature(store, op):
    apply(ControlOrder("enrol", "meter-1", public=PUBLIC), store)
    order = ControlOrder("command", "meter-1", op=op, via="console")
    with pytest.raises(OrderError, match="needs the root's signature") as refused:
        apply(order, store)
    assert f"command meter-1 {op} --root-key" in refused.value.hint
    assert store.commands.open("meter-1") == []
    apply(replace(order, until=9, root="00" * 72), store)
    assert [(c.op, c.until, c.root) for c in store.commands.open("meter-1")] == [(op, 9, bytes(72))]


def test_another_key_is_another_generation(store):
    apply(ControlOrder("enrol", "meter-1", public=PUBLIC), store)
    apply(ControlOrder("enrol", "meter-1", public=OTHER), store)
    assert states(store) == {"meter-1": ("enrolled", 2)}
    assert store.devices.all()[0].sign == (bytes.fromhex(OTHER),)


@pytest.mark.parametrize("via", ["command", "authority"])
def test_the_count_of_releases_continues_under_another_key(store, via):
    apply(ControlOrder("enrol", "meter-1", public=PUBLIC, via=via), store)
    store.ledgers.save("meter-1", replace(store.ledgers.get("meter-1"), spent=7))
    apply(ControlOrder("enrol", "meter-1", public=OTHER, via=via), store)
    assert store.ledgers.get("meter-1").spent == 7
    assert states(store) == {"meter-1": ("enrolled", 2)}


def test_a_key_that_replaces_another_one_is_in_force_beside_it_and_the_ledger_stays(store):
    apply(ControlOrder("enrol", "meter-1", public=PUBLIC), store)
    before = replace(store.ledgers.get("meter-1"), spent=7, cur=3)
    store.ledgers.save("meter-1", before)
    order = ControlOrder("enrol", "meter-1", public=OTHER, former=PUBLIC)
    assert "new key" in apply(order, store)
    assert "already enrolled" in apply(order, store)
    assert store.devices.all()[0].sign == (bytes.fromhex(PUBLIC), bytes.fromhex(OTHER))
    assert states(store) == {"meter-1": ("enrolled", 1)}
    assert replace(store.ledgers.get("meter-1"), cmd=before.cmd) == before
    assert [command.op for command in store.commands.open("meter-1")] == ["hello"]
    third = "03" * 32
    apply(ControlOrder("enrol", "meter-1", public=third, former="04" * 32), store)
    assert store.devices.all()[0].sign == (bytes.fromhex(third),)  # of no key that is in force
    assert states(store) == {"meter-1": ("enrolled", 2)}


def test_a_revoked_device_comes_back_by_enrolment_only(store):
    apply(ControlOrder("enrol", "meter-1", public=PUBLIC), store)
    apply(ControlOrder("revoke", "meter-1", why="sold"), store)
    assert states(store) == {"meter-1": ("revoked", 1)}
    apply(ControlOrder("enrol", "meter-1", public=PUBLIC), store)
    assert states(store) == {"meter-1": ("enrolled", 2)}


def test_a_command_twice_is_issued_once_until_it_is_done(store):
    apply(ControlOrder("enrol", "meter-1", public=PUBLIC), store)
    order = ControlOrder("command", "meter-1", op="report")
    assert apply(order, store) == apply(order, store) == "command 1 for meter-1: report"
    store.commands.finish("meter-1", 1, 0)
    assert apply(order, store) == "command 2 for meter-1: report"


@pytest.mark.parametrize(
    ("order", "says"),
    [
        (ControlOrder("revoke", "nobody"), "is not enrolled"),
        (ControlOrder("pause", "_all"), "only a running daemon can pause"),
        (
            ControlOrder("command", "meter-1", op="explode"),
            "unknown command 'explode'; known: stop",
        ),
    ],
)
def test_orders_that_make_no_sense(store, order, says):
    apply(ControlOrder("enrol", "meter-1", public=PUBLIC), store)
    with pytest.raises(OrderError, match=says):
        apply(order, store)


def test_the_folder_is_emptied_whatever_lies_in_it(store, tmp_path):
    folder, told = tmp_path / "inbox", []
    leave(folder, ControlOrder("enrol", "meter-1", public=PUBLIC))
    leave(folder, ControlOrder("revoke", "nobody"))
    (folder / "garbage.json").write_text('{"do": "explode"}')
    (folder / "deep.json").write_text("[" * 60_000)
    (folder / "half.part").write_text("{")
    assert carry_out(folder, lambda order: apply(order, store), told.append) == 1
    assert [path.name for path in folder.iterdir()] == ["half.part"]
    assert len(told) == 4
    assert list(waiting(folder)) == []


def test_one_key_names_one_device(store):
    apply(ControlOrder("enrol", "meter-1", public=PUBLIC), store)
    apply(ControlOrder("revoke", "meter-1"), store)
    with pytest.raises(OrderError, match="this key is already enrolled as 'meter-1'"):
        apply(ControlOrder("enrol", "meter-2", public=PUBLIC), store)
    assert states(store) == {"meter-1": ("revoked", 1)}


def test_an_order_may_follow_the_enrolment_that_waits_before_it(store):
    enrolment = ControlOrder("enrol", "meter-1", public=PUBLIC)
    check_order(ControlOrder("command", "meter-1", op="report"), store, [enrolment])
    with pytest.raises(OrderError, match="already enrolled as 'meter-1'"):
        check_order(ControlOrder("enrol", "meter-2", public=PUBLIC), store, [enrolment])
    with pytest.raises(OrderError, match="'meter-2' is not enrolled"):
        check_order(ControlOrder("command", "meter-2", op="report"), store, [enrolment])


def further(name, owner, public=PUBLIC):
    return ControlOrder("enrol", name, public=public, labels=f"device={owner}")


def test_further_participations_of_a_device_have_its_key_and_name_it(store):
    apply(ControlOrder("enrol", "meter-1", public=PUBLIC), store)
    with pytest.raises(OrderError, match="already enrolled as 'meter-1'") as refused:
        apply(further("meter-1-b", "meter-2"), store)
    assert "--label device=meter-1" in refused.value.hint
    assert apply(further("meter-1-b", "meter-1"), store) == "meter-1-b is enrolled"
    for order in (further("meter-1-b", "meter-1"), ControlOrder("enrol", "meter-1", public=PUBLIC)):
        assert "already enrolled with this key" in apply(order, store)
    apply(further("meter-1-c", "meter-1"), store)
    apply(further("meter-1-d", "meter-1"), store)
    with pytest.raises(OrderError, match="meter-1 has 4 participations; a device has at most 4"):
        apply(further("meter-1-e", "meter-1"), store)


def test_a_device_is_revoked_under_all_its_ids_and_gets_no_further_one(store):
    apply(ControlOrder("enrol", "meter-1", public=PUBLIC), store)
    apply(further("meter-1-b", "meter-1"), store)
    assert "meter-1-b and meter-1 are revoked" in (
        apply(ControlOrder("revoke", "meter-1-b", why="stolen"), store)
    )
    assert {state for state, _ in states(store).values()} == {"revoked"}
    with pytest.raises(OrderError, match="already enrolled"):
        apply(further("meter-1-c", "meter-1"), store)


def test_two_programs_leave_the_same_order_at_the_same_time(tmp_path, monkeypatch):
    order, sync, inside = ControlOrder("pause", "_all", id="same"), os.fsync, []

    def meanwhile(number):
        monkeypatch.undo()
        inside.append(leave(tmp_path, order))
        sync(number)

    monkeypatch.setattr(os, "fsync", meanwhile)
    assert leave(tmp_path, order) == inside[0]
    assert [found for _, found in waiting(tmp_path)] == [order]
    assert [path.name for path in tmp_path.iterdir()] == ["same.json"]


def key_number(number):
    return keys.from_seed(number.to_bytes(32, "big")).public.hex()


def test_many_enrolments_read_the_devices_once(store, monkeypatch):
    """Reading all of them for each order took minutes for 5,000."""
    orders = [ControlOrder("enrol", f"m-{n}", public=key_number(n)) for n in range(50)]
    reads, read = [], store.devices.all
    monkeypatch.setattr(store.devices, "all", lambda: reads.append(1) or read())
    check_orders(orders, store)
    known = KnownDevices(store.devices.all())
    results = [apply(order, store, known) for order in orders]
    assert results == [f"m-{n} is enrolled" for n in range(50)]
    assert len(reads) == 2
    assert len(store.devices.all()) == 50
    assert known["m-7"] == store.devices.get("m-7")


def test_an_enrolment_is_checked_against_those_before_it(store):
    first, second = (ControlOrder("enrol", name, public=key_number(1)) for name in ("m-1", "m-2"))
    with pytest.raises(OrderError, match="already enrolled as 'm-1'"):
        check_orders([first, second], store)
    known = KnownDevices(store.devices.all())
    apply(first, store, known)
    with pytest.raises(OrderError, match="already enrolled as 'm-1'"):
        apply(second, store, known)
    apply(ControlOrder("enrol", "m-1", public=key_number(2)), store, known)
    apply(second, store, known)  # the key is free again
    assert states(store) == {"m-1": ("enrolled", 2), "m-2": ("enrolled", 1)}
