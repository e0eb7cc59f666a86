"""Read which devices a rule left out in the newest rounds."""

from __future__ import annotations

import json

from aggregator.extensions.console.overview_rows import SuspectRow
from aggregator.store.dialect import Database, dialect_of


def rows(db: Database, run: int, rounds: int, most: int) -> list[SuspectRow]:
    """Return the devices that the rule left out in the newest rounds, the most frequent first."""
    sql = dialect_of(db)
    dropped, weights = (sql.json_items("report", key) for key in ("dropped", "weights"))
    recent = (
        "WITH recent AS (SELECT round, report FROM versions WHERE run = ?"
        " ORDER BY round DESC LIMIT ?)"
    )
    out = db.execute(
        f"{recent}, out AS ("  # noqa: S608 - fixed text
        f" SELECT round, key AS device, value AS why FROM recent, {dropped}"
        f" UNION SELECT round, key, 'weight 0' FROM recent, {weights}"
        " WHERE CAST(value AS DOUBLE PRECISION) = 0)"
        f" SELECT device, count(DISTINCT round), max(round), {sql.json_list('why')},"
        f" {sql.json_list('round')}"
        " FROM out GROUP BY device ORDER BY 2 DESC, 1 LIMIT ?",
        (run, rounds, most),
    ).fetchall()
    answered = dict(
        db.execute(
            f"{recent} SELECT value, count(*) FROM recent,"  # noqa: S608 - fixed text
            f" {sql.json_elements('report', 'cohort')} GROUP BY value",
            (run, rounds),
        ).fetchall()
    )
    return [
        SuspectRow(
            str(device),
            times,
            answered.get(device, times),
            last,
            _sorted(reasons),
            tuple(sorted(map(int, json.loads(when)), reverse=True)),
        )
        for device, times, last, reasons, when in out
    ]


def _sorted(reasons: str) -> tuple[str, ...]:
    return tuple(sorted(map(str, json.loads(reasons))))
