"""A device that is asked by itself: the newest task, once, whatever is lost, repeated or cut."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol import codec, keys, topics
from edge_sdk.protocol import messages as m
from edge_sdk.protocol.contract.method import CONTRACTS
from edge_sdk.protocol.envelope import digest, seal
from edge_sdk.session.manifest_checks import (
    ManifestExpectation,
    NewestAnnouncements,
    judge_task,
    vectors,
)

W0 = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
NUMBERS = {"steps": 3.0, "rate": 0.1}
SIGNER = keys.from_seed(b"a" * 32)  # the aggregator's


def task_of(server, number=1, base=0, w=W0, *, run=1, whole=True, chunk=8192, **changes):
    """Write a task, and let the server hold its content."""
    spec = server.spec.digest
    blob = codec.pack_tensor(np.asarray(w, np.float32), "f4")
    body = codec.encode(
        m.ContentBody(run=run, version=base, part="shared", spec=spec, enc="f4", blob=blob)
    )
    server.contents[digest(body)[:16]] = body
    task = m.TaskMessage(
        run=run,
        round=number,
        base=base,
        ask="train",
        spec=spec,
        digest=digest(body),
        size=len(body),
        chunk=chunk,
        vals=NUMBERS,
        blob=body if whole else b"",
    )
    return replace(task, **changes)


@pytest.fixture
def asked(make):
    """A device of an asynchronous run, linked and welcomed, with something to learn."""

    def begin(method="fedbuff", hours=60, **options):
        one = make(**options)
        encs = (CONTRACTS[method]["step" if method == "rsa" else "train"].enc,)
        one.server.announce_bundle(serial=2, method=method, run=1, encs=encs)
        one.device.start()
        one.device.observe(hours)
        one.run()
        return one

    return begin


def tell(one, *tasks, turns=12):
    for task in tasks:
        one.server.answer(task)
    one.run(turns)
    return one.server.updates


def counts(one):
    return one.device.client.status()["counts"]


def test_a_task_is_answered_with_its_own_round_and_base(asked):
    one = asked()
    (update,) = tell(one, task_of(one.server, number=7, base=5))
    assert (update.run, update.round, update.base, update.part) == (1, 7, 5, "delta")
    assert one.server.counts["have"] == 0
    client = one.device.client
    assert np.frombuffer(update.blob, "<f4").tobytes() == (W0 - client.state.p[:4]).tobytes()


@pytest.mark.extension
def test_the_update_follows_the_contract(asked):
    one = asked("fedasync")
    (update,) = tell(one, task_of(one.server))
    assert update.part == "weights"
    shared = one.device.client.state.p[:4]
    np.testing.assert_allclose(np.frombuffer(update.blob, "<f4"), shared, rtol=1e-6)


def test_content_that_was_not_sent_along_is_requested(asked):
    one = asked()
    (update,) = tell(one, task_of(one.server, whole=False))
    assert one.server.counts["have"] == 1
    assert update.round == 1


def test_a_task_without_windows_waits_and_is_reported_once(asked, caplog):
    """The aggregator hears of it where a manifest of the common model is there to refer to."""
    one = asked(hours=2)
    one.server.open_round(1, 0, W0)
    assert tell(one, task_of(one.server), turns=30) == []
    assert [refusal.code for refusal in one.server.refusals] == [Reason.NO_WINDOWS]
    waits = [x.getMessage() for x in caplog.records if x.message.startswith("round waiting")]
    assert waits == ['round waiting round=1 why="2 more readings without a gap (2 hours)"']
    one.device.observe(60)
    assert [update.round for update in tell(one)] == [1]


def test_a_repeated_task_is_trained_once(asked):
    one = asked()
    task = task_of(one.server)
    tell(one, task, task, replace(task, blob=b""))
    tell(one, replace(task, blob=b""))
    assert len(one.server.updates) == 1
    assert one.server.counts["have"] == 0


def test_a_task_is_trained_once_across_a_power_cut(asked):
    one = asked()
    task = task_of(one.server)
    tell(one, task)
    one.device.kill()
    one.device.start()
    one.run()
    tell(one, task)
    assert len(one.server.updates) == 1
    (_, newer) = tell(one, task_of(one.server, number=2, base=1))
    assert newer.round == 2


def test_a_power_cut_before_the_upload_gives_the_same_update(asked):
    one = asked()
    one.server.answer(task_of(one.server))
    one.device.kill()
    one.device.start()
    one.run()
    again = tell(one, task_of(one.server))
    other = asked(name="other")
    plain = tell(other, task_of(other.server))
    assert [u.blob for u in again] == [u.blob for u in plain]


def test_the_newest_task_counts_in_any_order_of_arrival(asked):
    one = asked()
    old, new = task_of(one.server, 1), task_of(one.server, 3, 2, 2 * W0)
    one.server.answer(new)
    one.server.answer(old)
    one.run()
    assert [(u.round, u.base) for u in one.server.updates] == [(3, 2)]
    tell(one, old)
    assert len(one.server.updates) == 1


def test_a_later_attempt_or_turn_of_a_round_is_another_task(asked):
    one = asked()
    task = task_of(one.server)
    tell(one, task)
    tell(one, replace(task, step=1))
    tell(one, replace(task, attempt=1))
    tell(one, replace(task, step=1))
    assert len(one.server.updates) == 3


def test_a_task_of_a_future_run_waits_for_it(make):
    one = make()
    one.device.start()
    one.device.observe()
    one.run()
    tell(one, task_of(one.server))
    assert one.server.updates == []
    one.server.announce_bundle(serial=2, method="fedbuff", run=1)
    one.run()
    assert len(one.server.updates) == 1


def test_a_task_of_a_run_that_never_starts_does_not_block_others(asked):
    one = asked()
    tell(one, task_of(one.server, number=99, run=7))
    assert one.server.updates == []
    assert [u.run for u in tell(one, task_of(one.server))] == [1]


def test_a_task_of_an_ended_run_is_refused(asked):
    one = asked()
    one.server.announce_bundle(serial=3, method="fedbuff", run=2)
    one.run()
    tell(one, task_of(one.server, run=1))
    assert (one.server.updates, counts(one)["arrived WRONG_RUN"]) == ([], 1)


def test_a_manifest_alone_starts_no_training(asked):
    one = asked()
    one.server.open_round(1, 0, W0)
    one.run(40, seconds=1.0)
    assert one.server.updates == []
    assert one.server.counts["have"] == 0


def test_the_end_of_the_run_is_read_from_the_manifest(asked):
    one = asked()
    tell(one, task_of(one.server))
    final = np.full(4, 0.75, np.float32)
    one.server.open_round(9, 8, final, phase="stop")
    one.run(40, seconds=1.0)
    client = one.device.client
    assert client.is_done
    np.testing.assert_array_equal(client.state.p[:4], final)
    tell(one, task_of(one.server, number=10, base=9))
    assert len(one.server.updates) == 1


def test_a_pause_keeps_the_task(asked):
    one = asked()
    one.server.open_round(0, 0, W0, phase="pause")
    one.run()
    tell(one, task_of(one.server))
    assert one.server.updates == []
    one.server.open_round(0, 0, W0, phase="train")
    one.run(40)
    assert len(one.server.updates) == 1


@pytest.mark.extension
def test_a_stop_command_keeps_the_task(asked):
    one = asked()
    one.server.answer(m.CommandMessage(1, "stop"))
    one.run()
    tell(one, task_of(one.server))
    assert one.server.updates == []
    one.server.answer(m.CommandMessage(2, "resume"))
    one.run()
    assert len(one.server.updates) == 1


def test_a_device_without_readings_trains_once_it_has_some(asked):
    one = asked(hours=0)
    tell(one, task_of(one.server))
    assert one.server.updates == []
    one.device.observe()
    one.run()
    assert len(one.server.updates) == 1


def test_waiting_for_readings_uses_no_busy_loop(asked, monkeypatch):
    one, waits = asked(hours=0), []
    tell(one, task_of(one.server))
    poll = one.device.client._session.parts.link.link.poll
    monkeypatch.setattr(
        one.device.client._session.parts.link.link,
        "poll",
        lambda timeout: waits.append(timeout) or poll(0.0),
    )
    one.device.client.tick(0.5)
    assert max(waits) > 0.0


def test_a_task_of_an_older_version_is_refused(asked):
    one = asked()
    tell(one, task_of(one.server, 1, base=5))
    tell(one, task_of(one.server, 2, base=4))
    assert len(one.server.updates) == 1
    assert counts(one)["arrived ROLLBACK"] == 1


def test_a_blob_with_another_digest_is_refused_and_the_right_one_used(asked):
    one = asked()
    task = task_of(one.server)
    forged = replace(task, blob=task.blob[:-1] + b"\x01")
    tell(one, forged)
    assert (one.server.updates, counts(one)["arrived BAD_DIGEST"]) == ([], 1)
    tell(one, task)
    assert len(one.server.updates) == 1


def test_a_content_of_another_run_or_version_is_refused(asked):
    one = asked()
    tell(one, replace(task_of(one.server, base=3), base=4))
    assert (one.server.updates, counts(one)["arrived MALFORMED"]) == ([], 1)


def wanted(method="fedbuff"):
    return ManifestExpectation(bytes(16), 4, CONTRACTS[method], max_steps=64)


PLAIN = m.TaskMessage(
    run=1,
    round=2,
    base=1,
    ask="train",
    spec=bytes(16),
    digest=bytes(32),
    size=100,
    chunk=8192,
    vals=NUMBERS,
)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"run": 2}, Reason.WRONG_RUN),
        ({"ask": "step"}, Reason.UNKNOWN_KIND),
        ({"spec": bytes([1]) * 16}, Reason.WRONG_SPEC),
        ({"base": 0}, Reason.ROLLBACK),
        ({"digest": None, "size": None, "chunk": None}, Reason.MALFORMED),
        ({"vals": {"steps": 65.0}}, Reason.BAD_SCALAR),
        ({"vals": {"stepz": 1.0}}, Reason.BAD_SCALAR),
        ({"vals": {"rate": float("inf")}}, Reason.BAD_SCALAR),
    ],
)
def test_a_device_refuses_tasks_it_cannot_do(changes, reason):
    seen = NewestAnnouncements(run=1, version=1)
    judge_task(PLAIN, seen, wanted())
    with pytest.raises(Refused) as caught:
        judge_task(replace(PLAIN, **changes), seen, wanted())
    assert caught.value.reason is reason


def test_a_task_for_one_device_of_a_broadcast_method_is_refused():
    common = wanted("fedavg")
    with pytest.raises(Refused) as caught:
        judge_task(PLAIN, NewestAnnouncements(run=1), common)
    assert caught.value.reason is Reason.UNKNOWN_KIND


@pytest.mark.parametrize("scalars", [0, 3, 6])
def test_a_content_of_another_number_of_vectors_is_refused(scalars):
    with pytest.raises(Refused) as caught:
        vectors(("z", "dual"), np.zeros(scalars, np.float32), 2)
    assert caught.value.reason is Reason.WRONG_SIZE


@pytest.mark.extension
def test_an_encoding_outside_the_contract_is_not_sent(asked):
    one = asked("rsa")
    numbers = {"steps": 1.0, "rate": 0.1, "l1": 0.1, "l1_mode": 0.0}
    task = replace(task_of(one.server), ask="step", vals=numbers)
    tell(one, task)
    assert one.server.updates == []
    one.server.caps = ("b1", "b2")
    one.device.kill()
    one.device.start()
    one.run()
    (update,) = tell(one, task)
    assert (update.part, update.enc) == ("sign", "b2")
    assert set(codec.unpack_tensor(update.blob, "b2", 4)) <= {-1.0, 0.0, 1.0}


def scrambled(rng, body):
    """Flip, mark, cut or repeat a few bytes of a body, most of them in its header."""
    out = bytearray(body)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(min(len(out), rng.choice((40, 250, 400))))
        match rng.randrange(4):
            case 0:
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                out[at] = rng.choice((0x80, 0x90, 0xA0, 0xC0, 0xC4, 0xCB, 0xCF, 0xDF, 0xFF))
            case 2:
                del out[at : at + rng.randrange(1, 9)]
            case _:
                out[at:at] = out[at : at + rng.randrange(1, 40)]
    return bytes(out)


@pytest.mark.parametrize("seed", range(3))
def test_any_signed_task_leaves_the_device_running(asked, seed):
    """An aggregator gone bad has the right key; its words are still read under every limit."""
    one, rng = asked(), random.Random(seed)
    device = one.device.config.id
    topic, body = topics.down("north", device, "task"), codec.encode(task_of(one.server, 4, 3))
    way = {"kind": "task", "sender": "_agg", "recipient": device, "fleet": "north"}
    for _ in range(250):
        assert one.server._link.publish(topic, seal(scrambled(rng, body), signer=SIGNER, **way))
        one.run(1)
    one.run()
    assert counts(one)["arrived MALFORMED"] > 100
    one.server.announce_bundle(serial=3, method="fedbuff", run=2)
    one.run()
    assert tell(one, task_of(one.server, run=2))[-1].run == 2
