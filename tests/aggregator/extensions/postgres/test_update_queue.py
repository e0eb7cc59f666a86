"""The queue of checked updates on PostgreSQL: order, what stays, who counts as a worker."""

import subprocess
import sys
import threading
import time
from functools import partial

import pytest

from aggregator.extensions.postgres.update_queue import QueuedUpdate, WorkerStatus, open_queue
from aggregator.store import opener
from aggregator.store.errors import DatabaseBusyError, DatabaseError
from aggregator.store.opener import open_store

psycopg = pytest.importorskip("psycopg")


@pytest.fixture
def fleet(place):
    open_store(place).close()
    return place


@pytest.fixture
def queue(fleet):
    queue = open_queue(fleet)
    yield queue
    queue.close()


def update(number, key=b"k" * 32):
    return QueuedUpdate(f"topic/{number}", bytes([number]) * 5, verified_by=key)


def found(queue, most=100):
    return [(one.topic, one.payload, one.verified_by) for one in queue.oldest(most)]


def test_updates_stay_in_order_until_they_are_removed(queue):
    queue.append([update(1), update(2, b"")])
    queue.append([update(3)])
    queue.append([])
    all_three = [(f"topic/{n}", bytes([n]) * 5, b"" if n == 2 else b"k" * 32) for n in (1, 2, 3)]
    assert found(queue) == all_three
    assert found(queue) == all_three
    queue.remove(queue.oldest(2))
    assert found(queue) == all_three[2:]


def test_a_worker_that_dies_leaves_what_it_has_queued(fleet, queue):
    worker = open_queue(fleet, worker="1")
    worker.append([update(1)])
    worker.report({"checked": 1})
    worker.close()
    assert len(found(queue)) == 1
    assert queue.workers() == [WorkerStatus("1", False, 1, {"checked": 1})]
    queue.remove(queue.oldest(1))
    assert queue.workers() == []


def alive(queue):
    return [one.name for one in queue.workers() if one.is_alive]


def wait_until(is_true):
    until = time.monotonic() + 60
    while not is_true() and time.monotonic() < until:
        time.sleep(0.01)
    assert is_true()


def test_workers_that_receive_are_alive_and_silent_ones_are_not(fleet, queue, monkeypatch):
    monkeypatch.setattr("aggregator.extensions.postgres.postgres_queue.ALIVE", 1e6)
    one, other = (open_queue(fleet, worker=name) for name in ("a", "b"))
    assert alive(queue) == []
    one.show(is_receiving=True)
    other.show(is_receiving=True)
    assert alive(queue) == ["a", "b"]
    other.show(is_receiving=False)
    assert alive(queue) == ["a"]
    monkeypatch.setattr("aggregator.extensions.postgres.postgres_queue.ALIVE", -1.0)
    assert alive(queue) == []
    monkeypatch.setattr("aggregator.extensions.postgres.postgres_queue.ALIVE", 1e6)
    one.close()
    other.close()
    wait_until(lambda: not alive(queue))  # the server ends their sessions


def test_a_name_belongs_to_one_worker_at_a_time(fleet, monkeypatch):
    monkeypatch.setattr("aggregator.extensions.postgres.postgres_queue.ENDING", 50)
    first = open_queue(fleet, worker="1")
    with pytest.raises(DatabaseBusyError, match="'1' runs already"):
        open_queue(fleet, worker="1")
    other = open_queue(fleet, worker="2")
    first.close()
    monkeypatch.setattr("aggregator.extensions.postgres.postgres_queue.ENDING", 60_000)
    again = open_queue(fleet, worker="1")
    for one in (other, again):
        one.close()


WORKER = """
import sys
from aggregator.store.dialect import DatabaseUrl
from aggregator.extensions.postgres.update_queue import QueuedUpdate, open_queue

queue, number = open_queue(DatabaseUrl(sys.argv[1]), worker="1"), 0
while True:
    group = [QueuedUpdate(f"t/{number + at}", b"x" * 200, verified_by=b"k" * 32) for at in range(20)]
    queue.append(group)
    number += len(group)
    print(number, flush=True)
"""


def test_sixty_thousand_queued_updates_survive_the_death_of_a_worker(fleet, queue):
    """kill -9 while it appends: what it had queued stays, and groups are whole."""
    command = [sys.executable, "-c", WORKER, fleet.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        queued = 0
        while queued < 60_000:
            queued = int(worker.stdout.readline())
        worker.kill()
    with psycopg.connect(fleet.url) as db:
        topics = {topic for (topic,) in db.execute("SELECT topic FROM queued_updates")}
    assert len(topics) >= queued
    assert len(topics) % 20 == 0
    assert topics == {f"t/{number}" for number in range(len(topics))}
    assert queue.length() == len(topics)
    wait_until(lambda: queue.workers() == [WorkerStatus("1", False, len(topics), {})])


def test_the_length_counts_what_waits(queue):
    assert queue.length() == 0
    queue.append([update(n) for n in range(5)])
    assert queue.length() == 5
    queue.remove(queue.oldest(3))
    assert queue.length() == 2


def test_a_transaction_that_ends_late_is_not_lost(place, fleet, queue):
    """Positions become visible in another order than they were drawn; what was not seen stays."""
    with psycopg.connect(place.url) as slow:
        slow.execute(
            "INSERT INTO queued_updates (worker, topic, payload, verified_by)"
            " VALUES ('slow', 'topic/1', 'p', 'k')"
        )
        queue.append([update(2)])
        seen = queue.oldest(10)
        assert [one.topic for one in seen] == ["topic/2"]
        slow.commit()
    queue.remove(seen)
    assert [one.topic for one in queue.oldest(10)] == ["topic/1"]


def test_many_workers_may_start_at_once(fleet):
    opened, threads = [], []
    for number in range(6):
        start = partial(open_queue, fleet, worker=str(number))
        threads.append(threading.Thread(target=lambda start=start: opened.append(start())))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert len(opened) == 6
    for one in opened:
        one.close()


def test_a_fleet_that_was_not_set_up_is_refused(place):
    with pytest.raises(DatabaseError, match="no tables of a fleet"):
        open_queue(place, worker="1")


def test_a_file_has_no_queue(file):
    with pytest.raises(DatabaseError, match="need PostgreSQL"):
        open_queue(file)


def test_a_backup_does_not_copy_the_queue(fleet, queue, file, tmp_path):
    queue.append([update(1)])
    with open_store(fleet) as store:
        store.backup(tmp_path / "copy.db")
    assert opener.exists(tmp_path / "copy.db")
    assert len(found(queue)) == 1
