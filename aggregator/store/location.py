"""Name the place of a database: a file of SQLite, or the URL of a PostgreSQL database."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

SCHEMES = ("postgresql", "postgres")


@dataclass(frozen=True, slots=True)
class PostgresUrl:
    """A PostgreSQL database, of one fleet.

    Attributes:
        url: URL for libpq: ``postgresql://user@host/database?options``. A password belongs into
            ``~/.pgpass``; one in the URL is never printed.

    Example:
        >>> str(PostgresUrl("postgresql://gridfed:secret@db.example:5432/north"))
        'postgresql://db.example:5432/north'
    """

    url: str

    def __str__(self) -> str:
        """Return the URL without user, password and options."""
        found = urlsplit(self.url)
        host = found.netloc.rpartition("@")[2]
        return f"{found.scheme}://{host}{found.path}"

    @property
    def name(self) -> str:
        """Return the name for messages."""
        return str(self)


Location = Path | PostgresUrl
"""Place of a database."""
