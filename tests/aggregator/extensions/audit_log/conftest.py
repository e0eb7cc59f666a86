"""A database of each engine, as the tests of the store have it."""

from tests.aggregator.store.conftest import file, path, place, postgres_server, store

__all__ = ["file", "path", "place", "postgres_server", "store"]
