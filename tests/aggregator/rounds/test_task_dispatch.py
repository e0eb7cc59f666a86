"""What a single device is asked: kept with the state, said again, its content stored once."""

from __future__ import annotations

import sqlite3

import numpy as np
import pytest

from aggregator.rounds.task_dispatch import RARELY, REMIND, OpenTasks, content_of, message, recorded
from aggregator.store.ledgers import Ledger, LedgerRow
from aggregator.store.opener import open_store
from aggregator.store.types import DownloadBody, PendingTask, RunRecord
from edge_sdk.protocol import codec, envelope, messages
from edge_sdk.protocol.contract.method import Ask, Task, Up, Update
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from edge_sdk.protocol.messages import CHUNK_LIMIT, HEADER_LIMIT

SPEC = ParamSpec.of([("w", (3,))])
CONTRACT = {
    "step": Ask(down=("z", "dual"), up=Up.WEIGHTS, personal=True, patient=True),
    "share": Ask(up=Up.WEIGHTS, personal=True),
}
Z = np.array([1.0, -2.0, 0.5], np.float32)
BOTH = {"meter-1", "meter-2"}
RUN = RunRecord(1, "toy", "{}", "toy", SPEC.digest, bytes(16))


def task(to="meter-1", number=1, base=0, z=Z, ask="step", **more):
    return Task(to, number, ask, base=base, values={"fired": 1.5}, arrays={"z": z} | more)


def kept(*tasks, chunk=CHUNK_LIMIT):
    return recorded(tasks, CONTRACT, SPEC, run=1, chunk=chunk)


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "fleet.db") as opened:
        opened.begin(RUN, {})
        yield opened


def commit(store, *tasks, upto=1):
    asked, contents = kept(*tasks)
    store.commit(1, {}, upto, asked=asked, contents=contents)
    return asked, contents


def held(store):
    """The ids of all contents that may be pulled."""
    return {row[0] for row in store._db.execute("SELECT id FROM contents")}


class TestContents:
    def test_one_vector_is_the_content_of_the_model_itself(self):
        content = codec.decode(
            messages.ContentBody, content_of(task(base=4), CONTRACT["step"], SPEC, 1)
        )
        assert (content.run, content.version, content.part, content.enc) == (1, 4, "shared", "f4")
        assert np.frombuffer(content.blob, "<f4").tolist() == Z.tolist()

    def test_several_vectors_follow_each_other_as_the_contract_lists_them(self):
        body = content_of(task(dual=2 * Z), CONTRACT["step"], SPEC, 1)
        blob = codec.decode(messages.ContentBody, body).blob
        assert np.frombuffer(blob, "<f4").tolist() == [*Z.tolist(), *(2 * Z).tolist()]

    def test_who_is_told_the_same_shares_one_content(self):
        asked, contents = kept(task("meter-1"), task("meter-2"), task("meter-3", z=2 * Z))
        assert [one.content for one in asked[:2]] == [contents[0].id] * 2
        assert len(contents) == 2

    def test_equal_vectors_of_two_versions_are_two_contents(self):
        _, contents = kept(task(base=1), task("meter-2", base=2))
        assert len(contents) == 2

    def test_a_task_may_bring_nothing(self):
        (asked,), contents = kept(Task("meter-1", 3, "share"))
        assert (asked.content, contents) == (b"", ())
        words = message(asked, None, SPEC.digest, whole=True)
        assert (words.digest, words.size, words.chunk, words.blob) == (None, None, None, b"")


class TestWords:
    def test_a_small_content_is_said_with_its_task_and_never_with_a_reminder(self):
        (asked,), (content,) = kept(task(number=7, base=6))
        whole = message(asked, content, SPEC.digest, whole=True)
        assert whole.blob == content.body
        assert whole.digest == envelope.digest(content.body)
        assert (whole.round, whole.base, whole.ask, dict(whole.vals)) == (
            7,
            6,
            "step",
            {"fired": 1.5},
        )
        assert message(asked, content, SPEC.digest, whole=False).blob == b""

    @pytest.mark.parametrize(("over", "said"), [(0, True), (1, False)])
    def test_what_does_not_fit_beside_a_header_is_fetched(self, over, said):
        (asked,), _ = kept(task())
        content = DownloadBody("task", bytes(16), bytes(8192 - HEADER_LIMIT + over), 8192)
        assert bool(message(asked, content, SPEC.digest, whole=True).blob) is said


class TestKeeping:
    def test_a_task_comes_back_from_the_disk_as_it_was(self, store):
        (asked,), _ = commit(store, task(number=3, base=2))
        assert store.tasks.get("meter-1", 1) == asked
        assert asked.values == {"fired": 1.5}
        assert store.tasks.get("meter-1", 2) is None
        assert store.tasks.get("meter-2", 1) is None

    def test_a_newer_task_takes_the_place_of_the_open_one(self, store):
        commit(store, task(number=3))
        commit(store, task(number=4, base=1), upto=2)
        assert [one.round for one in store.tasks.of_run(1)] == [4]

    def test_an_update_answers_the_task_of_its_round_in_one_transaction(self, store):
        commit(store, task(number=3))
        for number, state in ((2, "open"), (3, "answered")):
            update = Update("meter-1", number, 0, Z)
            row = LedgerRow(bytes(32), 0, 1, number)
            store.append("meter-1", Ledger(cur=1), (1, number), row, update)
            assert store.tasks.get("meter-1", 1).state == state

    def test_a_refusal_leaves_a_task_refused(self, store):
        commit(store, task(number=3))
        store.refuse("meter-1", Ledger(cur=1), (1, 1), LedgerRow(bytes(32), 24, 1, 3))
        assert [one.device for one in store.tasks.of_run(1, "refused")] == ["meter-1"]
        assert store.tasks.of_run(1) == []

    def test_saying_an_answered_task_again_does_not_open_it(self, store):
        asked, contents = commit(store, task(number=3))
        store.refuse("meter-1", Ledger(cur=1), (1, 1), LedgerRow(bytes(32), 24, 1, 3))
        store.commit(1, {}, 2, asked=asked, contents=contents)
        assert store.tasks.get("meter-1", 1).state == "refused"

    def test_a_content_stays_as_long_as_somebody_works_on_it(self, store):
        _, (first,) = commit(store, task("meter-1"), task("meter-2"))
        _, (second,) = commit(store, task("meter-1", 2, 1), upto=2)
        assert held(store) == {first.id, second.id}
        commit(store, task("meter-2", 3, 2), upto=3)
        assert first.id not in held(store)

    def test_a_content_that_is_the_models_too_is_kept_once_and_outlives_either(self, store):
        _, (content,) = commit(store, task())
        for version in range(4):
            body = content.body if not version else bytes([version])
            model = DownloadBody("model", envelope.digest(body)[:16], body, CHUNK_LIMIT)
            store.announce({}, [model])
        assert content.id in held(store)
        store.refuse("meter-1", Ledger(cur=1), (1, 1), LedgerRow(bytes(32), 24, 1, 1))
        store.announce({}, [DownloadBody("model", bytes(16), b"x", CHUNK_LIMIT)])
        assert content.id not in held(store)

    def test_a_new_run_forgets_the_tasks_of_the_old_one(self, store):
        commit(store, task())
        store.begin(RunRecord(2, "toy", "{}", "toy", SPEC.digest, bytes(16)), {})
        assert store.tasks.get("meter-1", 1) is None

    def test_a_store_of_the_first_schema_gets_its_table(self, tmp_path):
        path = tmp_path / "old.db"
        open_store(path).close()
        with sqlite3.connect(path) as db:
            db.executescript("DROP TABLE tasks; PRAGMA user_version = 1;")
        with open_store(path) as opened:
            opened.begin(RUN, {})
            commit(opened, task())
            assert len(opened.tasks.of_run(1)) == 1


class TestSayingAgain:
    def test_an_open_task_is_said_again_to_who_is_there_ever_more_rarely(self, store):
        commit(store, task("meter-1"), task("meter-2"))
        open_tasks, said = OpenTasks(store, 1, SPEC.digest, 0.0), []
        for now in range(3600):
            said += [(now, who) for who, _ in open_tasks.due(now, {"meter-1"})]
        assert {who for _, who in said} == {"meter-1"}
        times = [now for now, _ in said]
        assert times[:3] == [REMIND, 3 * REMIND, 7 * REMIND]
        assert max(np.diff(times)) <= RARELY

    def test_a_reminder_has_no_vectors_and_ends_with_the_answer(self, store):
        commit(store, task())
        open_tasks = OpenTasks(store, 1, SPEC.digest, 0.0)
        ((who, words),) = open_tasks.due(REMIND, BOTH)
        assert (who, words.blob) == ("meter-1", b"")
        assert words.size is not None
        store.refuse("meter-1", Ledger(cur=1), (1, 1), LedgerRow(bytes(32), 24, 1, 1))
        assert open_tasks.due(1000.0, BOTH) == []
        assert open_tasks.message_to("meter-1", 1000.0) is None

    def test_whoever_says_hello_and_hello_gets_the_vectors_once(self, store):
        commit(store, task())
        open_tasks = OpenTasks(store, 1, SPEC.digest, 0.0)
        said = [
            bool(open_tasks.message_to("meter-1", now).blob)
            for now in (0.0, 1.0, REMIND - 1, REMIND)
        ]
        assert said == [True, False, False, True]
        commit(store, task(number=2, base=1), upto=2)
        assert open_tasks.message_to("meter-1", REMIND + 1).blob

    def test_who_comes_back_and_everybody_after_a_lost_link_is_reminded_soon(self, store):
        commit(store, task("meter-1"), task("meter-2"))
        open_tasks = OpenTasks(store, 1, SPEC.digest, 0.0)
        open_tasks.returned("meter-2", 1.0)
        assert [who for who, _ in open_tasks.due(1.0, BOTH)] == ["meter-2"]
        open_tasks.hurry(2.0)
        assert [who for who, _ in open_tasks.due(2.0, BOTH)] == ["meter-1", "meter-2"]

    def test_after_a_lost_link_who_is_not_known_to_be_there_is_reminded_once(self, store):
        commit(store, task("meter-1"), task("meter-2"))
        open_tasks = OpenTasks(store, 1, SPEC.digest, 0.0)
        assert open_tasks.due(REMIND, ()) == []
        open_tasks.hurry(REMIND)
        assert [who for who, _ in open_tasks.due(REMIND, ())] == ["meter-1", "meter-2"]
        assert open_tasks.due(1000.0, ()) == []


def test_the_order_of_tasks():
    plain = PendingTask("meter-1", 1, 2, 0, 1, 0, "step")
    assert plain.turn == (2, 0, 1)
    assert plain.is_open
