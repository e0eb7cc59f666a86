"""Open databases on PostgreSQL (``aggregator.store.opener.Engine``); extra ``postgres``."""

from aggregator.store.errors import DatabaseError

try:
    from aggregator.extensions.postgres.postgres import (
        PostgresStore,
        migrate,
        open_reader,
        refill,
        wait_for_store,
    )
    from aggregator.extensions.postgres.postgres_connection import exists
    from aggregator.extensions.postgres.postgres_queue import PostgresQueue
except ModuleNotFoundError as error:
    if error.name is None or not error.name.startswith("psycopg"):
        raise
    raise DatabaseError(
        "store.url needs psycopg, which is not installed", hint="pip install 'gridfed[postgres]'"
    ) from error

__all__ = [
    "PostgresQueue",
    "exists",
    "migrate",
    "open_reader",
    "open_store",
    "refill",
    "wait_for_store",
]

open_store = PostgresStore.open
