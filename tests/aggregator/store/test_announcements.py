"""What is said to all stays retained, what may be pulled is kept, and numbers only rise."""

import pytest

from aggregator.store.errors import DatabaseError
from aggregator.store.opener import open_store
from aggregator.store.types import DownloadBody
from tests.aggregator.store.rig import begin


def test_announcements_contents_and_serials(store, path):
    begin(store)
    store.announce({"gf/1/n/_all/model": b"one", "gf/1/n/_all/part/1": b"slot"})
    store.announce({"gf/1/n/_all/part/1": b""})
    for number in range(3):
        store.announce({}, [DownloadBody("model", bytes([number] * 16), b"body", 8192)])
    assert store.announcements.all() == {"gf/1/n/_all/model": b"one", "gf/1/n/_all/part/1": b""}
    assert [store.contents.get(bytes([n] * 16)) is not None for n in range(3)] == [
        False,
        True,
        True,
    ]
    serials = [store.announcements.next_serial() for _ in range(3)]
    assert serials == sorted(set(serials))
    store.close()
    with open_store(path) as again:
        assert again.announcements.next_serial() > serials[-1]


def test_a_number_that_could_not_be_reserved_on_disk_is_not_handed_out(sqlite_store, file):
    sqlite_store._db.execute("PRAGMA query_only = 1")
    for _ in range(2):
        with pytest.raises(DatabaseError, match="readonly"):
            sqlite_store.announcements.next_serial()
    sqlite_store._db.execute("PRAGMA query_only = 0")
    serial = sqlite_store.announcements.next_serial()
    sqlite_store.close()
    with open_store(file) as again:
        assert again.announcements.next_serial() > serial
