import pytest

from aggregator.store import SqliteStore


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "fleet.db"


@pytest.fixture
def store(path):
    with SqliteStore.open(path) as store:
        yield store
