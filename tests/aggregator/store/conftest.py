import pytest

from aggregator.store.opener import open_store


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "fleet.db"


@pytest.fixture
def store(path):
    with open_store(path) as store:
        yield store
