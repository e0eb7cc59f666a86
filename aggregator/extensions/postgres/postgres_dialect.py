"""Write the parts of SQL in which PostgreSQL differs from SQLite."""

from __future__ import annotations

from aggregator.store.dialect import Database, Dialect, upsert

JOURNAL_END = "journal end"  # fact: the last position of the journal ever used


class PostgresDialect(Dialect):
    """SQL of PostgreSQL; positions of the journal are numbered by a fact."""

    table = "SELECT to_regclass(?)"
    last_position = f"SELECT value FROM facts WHERE name = '{JOURNAL_END}'"  # noqa: S608 - fixed text

    def use_position(self, db: Database, position: int) -> None:
        db.execute(upsert("facts", "name", "value"), (JOURNAL_END, position))

    def json_items(self, document: str, name: str) -> str:
        return f"jsonb_each_text(jsonb_extract_path({document}::jsonb, '{name}')) AS items (key, value)"

    def json_elements(self, document: str, name: str) -> str:
        return (
            f"jsonb_array_elements_text(jsonb_extract_path({document}::jsonb, '{name}'))"
            " AS elements (value)"
        )

    def json_length(self, document: str, name: str) -> str:
        return f"jsonb_array_length(jsonb_extract_path({document}::jsonb, '{name}'))"

    def json_list(self, column: str) -> str:
        return f"CAST(json_agg(DISTINCT {column}) AS TEXT)"

    def json_number(self, document: str, name: str) -> str:
        return f"CAST({document}::json ->> '{name}' AS DOUBLE PRECISION)"

    def json_text(self, document: str, name: str) -> str:
        return f"{document}::json ->> '{name}'"
