"""A database of each engine: a file of SQLite, and a schema on a PostgreSQL server."""

import pytest

from aggregator.store.dialect import ENGINES, DatabaseUrl
from aggregator.store.opener import open_store
from tests.postgres_server import postgres_server

__all__ = ["postgres_server"]


@pytest.fixture
def file(tmp_path):
    """Return the path of a file of SQLite."""
    return tmp_path / "state" / "fleet.db"


@pytest.fixture
def place(postgres_server):
    """Return the place of an empty PostgreSQL database."""
    return DatabaseUrl(postgres_server.schema())


@pytest.fixture(params=["sqlite", "postgres"] if "postgres" in ENGINES else ["sqlite"])
def path(request):
    """Return the place of an empty database of each engine."""
    return request.getfixturevalue("file" if request.param == "sqlite" else "place")


@pytest.fixture
def store(path):
    with open_store(path) as store:
        yield store


@pytest.fixture
def sqlite_store(file):
    with open_store(file) as store:
        yield store
