"""The databases of the store's tests."""

from tests.aggregator.store.conftest import file, path, place, postgres_server, store

__all__ = ["file", "path", "place", "postgres_server", "store"]
