"""Cost of an update in the daemon: one that it checks itself beside one that a worker has queued.

Blocks of both alternate, in schemas of their own, which are dropped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from aggregator.extensions.postgres.update_queue import QueuedUpdate, open_queue
from aggregator.store.dialect import DatabaseUrl
from tools.bench_store import BLOCK, Admission, Cost, Sender, cost_since, medians


class QueuedAdmission(Admission):
    """The daemon's ingress for updates that workers have checked.

    Args:
        place: The database, empty.
    """

    def __init__(self, place: DatabaseUrl, sender: Sender) -> None:
        super().__init__(place, sender)
        self.queue = open_queue(place)
        self._key = sender.key.public

    def block(self, group: int) -> Cost:
        """Take ``BLOCK`` updates from the queue, admit ``group`` in a commit, and remove them."""
        messages = [next(self._sent) for _ in range(BLOCK)]
        self.queue.append(
            [QueuedUpdate(m.topic, m.payload, verified_by=self._key) for m in messages]
        )
        begun = time.perf_counter(), time.process_time()
        for _ in range(0, BLOCK, group):
            taken = self.queue.oldest(group)
            with self.store.transaction():
                for message in taken:
                    self._admit(message)
            self.queue.remove(taken)
        return cost_since(*begun)


def daemon_costs(url: str, blocks: int) -> dict[str, Cost]:
    """Return the daemon's cost of an update that it checks itself, and of one from a worker."""
    found: dict[str, list[Cost]] = {"checked by the daemon": [], "checked by a worker": []}
    kinds = {"checked by the daemon": Admission, "checked by a worker": QueuedAdmission}
    for _ in range(blocks):
        for name, kind in kinds.items():
            with schema(url) as place:
                engine = kind(place, Sender(5760))
                engine.block(BLOCK)
                found[name] += [engine.block(BLOCK) for _ in range(4)]
                if isinstance(engine, QueuedAdmission):
                    engine.queue.close()
                engine.store.close()
    return medians(found)


@contextmanager
def schema(url: str) -> Iterator[DatabaseUrl]:
    """Make an empty schema in a database, and drop it at the end."""
    import psycopg  # noqa: PLC0415 - extra

    name = f"bench_{time.monotonic_ns()}"
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(f"CREATE SCHEMA {name}".encode())
        try:
            mark = "&" if "?" in url else "?"
            yield DatabaseUrl(f"{url}{mark}options=-c%20search_path%3D{name}")
        finally:
            db.execute(f"DROP SCHEMA {name} CASCADE".encode())
