"""Define the acts of an authority that the aggregator's audit log has yet to receive."""

from __future__ import annotations

from dataclasses import dataclass

ACTS_TABLE = """
    CREATE TABLE IF NOT EXISTS acts (
        position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, at TEXT NOT NULL,
        actor TEXT NOT NULL, act TEXT NOT NULL, subject TEXT NOT NULL, detail TEXT NOT NULL);
    """
"""Since schema 2: acts that the aggregator's audit log has yet to receive."""


@dataclass(frozen=True, slots=True)
class AuthorityAct:
    """An act for the aggregator's audit log."""

    id: str  # random id, by which the log takes it once
    at: str  # time, ISO 8601 in UTC
    actor: str  # person or device
    act: str
    subject: str  # name of a certificate, or a serial
    detail: str  # what was changed
