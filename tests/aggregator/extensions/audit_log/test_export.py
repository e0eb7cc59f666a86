"""A verification finds every change of the log, and says which record it is."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.audit_log import AuditLog, Initiator
from aggregator.extensions.audit_log.export import (
    Head,
    Verification,
    export_lines,
    read_head,
    verified,
)
from aggregator.store.audit_record import AuditRecord, canonical, signed
from aggregator.store.sqlite import in_memory
from edge_sdk.protocol import keys

KEY, OTHER = keys.from_seed(b"a" * 32), keys.from_seed(b"o" * 32)
VECTOR = Path(__file__).resolve().parents[3] / "vectors" / "audit-log.jsonl"
GOLDEN = tuple(VECTOR.read_text("utf-8").splitlines())
NOW = 1_800_000_000_000


def filled(count, salt=""):
    """Return a log of acts in memory."""
    store, time = in_memory(), iter(range(NOW, NOW + 10_000))
    log = AuditLog(store, "north", KEY, lambda: next(time))
    for number in range(count):
        by = Initiator("command", "änn", f"order{number}")
        log.record(
            by, "revoke", f"m-{number}", reason=f"sold{salt}", detail="from enrolled to revoked"
        )
    return store


def exported(count, salt=""):
    return list(export_lines(filled(count, salt), "north", KEY, NOW))


def found(lines, public=(KEY.public,), heads=()):
    return [(one.kind, one.number) for one in verified(lines, public, heads).faults]


def head_of(lines):
    return read_head(lines)[1]


def changed(lines, number, **values):
    """Return an export in which a record has other values, and everything else is as it was."""
    lines = list(lines)
    lines[number] = canonical({**json.loads(lines[number]), **values})
    return lines


def test_the_golden_vector_is_what_is_written_and_read():
    assert exported(3) == list(GOLDEN)
    log = verified(GOLDEN, [KEY.public])
    assert (log.faults, log.head.number, log.fleet) == ([], 3, "north")


def test_an_empty_log_is_an_export_too():
    assert found(exported(0)) == []


@pytest.mark.parametrize(
    ("damage", "faults"),
    [
        (lambda e: changed(e, 3, actor="eve"), [("changed", 3)]),
        (lambda e: changed(e, 3, time=NOW + 9), [("changed", 3)]),
        (lambda e: changed(e, 6, reason=""), [("changed", 6)]),
        (lambda e: changed(changed(e, 2, act="enrol"), 5, detail=""), [("changed", 2), ("changed", 5)]),
        (lambda e: [*e[:3], *e[4:]], [("missing", 3)]),
        (lambda e: [*e[:3], *e[5:]], [("missing", 3)]),
        (lambda e: [e[0], *e[2:]], [("missing", 1)]),
        (lambda e: [*e[:3], e[4], e[3], *e[5:]], [("missing", 3), ("moved", 3)]),
        (lambda e: [*e[:4], e[2], *e[4:]], [("moved", 2)]),
        (lambda e: e[:-1], [("truncated", 6)]),
        (lambda e: e[:1], [("truncated", 1)]),
        (lambda e: changed(e, 0, records=5), [("changed", 0), ("rewritten", 6)]),
        (lambda e: changed(e, 0, fleet="south"), [("changed", 0), *(("changed", n) for n in range(1, 7))]),
        (lambda e: ["{}", *e[1:]], [("malformed", 0)]),
        (lambda e: [*e[:2], "{}", *e[3:]], [("malformed", 2), ("truncated", 2)]),
        (lambda _: [], [("malformed", 0)]),
    ],
)  # fmt: skip
def test_a_change_is_found_at_its_record(damage, faults):
    assert found(damage(exported(6))) == faults


def test_a_record_that_is_written_anew_by_the_key_breaks_the_chain_after_it():
    lines = exported(5)
    other = filled(5, salt=" twice")
    record = list(other.audit_log.records())[2]
    own = list(filled(5).audit_log.records())[1]
    forged = signed(replace(record, previous=own.digest("north")), "north", KEY)
    lines[3] = canonical(forged.fields())
    assert found(lines) == [("unlinked", 4)]


def test_a_log_that_is_shorter_or_another_one_than_a_saved_head_is_found():
    early, late = exported(3), exported(6)
    assert found(late, heads=[head_of(early), head_of(late)]) == []
    assert found(early, heads=[head_of(late)]) == [("truncated", 4)]
    rewritten = exported(6, salt=" again")
    assert found(rewritten) == []  # the key itself wrote another log
    assert found(rewritten, heads=[head_of(early)]) == [("rewritten", 3)]


def test_records_of_a_key_that_is_not_given_are_not_accepted():
    assert found(exported(2), public=[OTHER.public]) == [
        ("changed", 0),
        ("changed", 1),
        ("changed", 2),
    ]
    assert found(exported(2), public=[OTHER.public, KEY.public]) == []


def test_a_log_in_the_database_is_verified_as_an_export_is():
    records = list(filled(4).audit_log.records())
    log = Verification("north", [KEY.public], [Head(9, bytes(32))])
    for record in (records[0], records[1], replace(records[2], actor="eve"), records[3]):
        log.add(record)
    assert [(one.kind, one.number) for one in log.close()] == [("changed", 3), ("truncated", 5)]


@given(st.integers(0, 3), st.integers(0, 700), st.text(max_size=4))
def test_no_change_of_a_line_passes(number, place, text):
    """A changed line either has the same fields or is found; nothing else is raised."""
    lines = list(GOLDEN)
    lines[number] = lines[number][:place] + text + lines[number][place + len(text) :]
    log = verified(lines, [KEY.public])
    if not log.faults:
        assert [json.loads(one) for one in lines] == [json.loads(one) for one in GOLDEN]


@given(st.lists(st.text(max_size=200), max_size=4))
def test_any_text_is_refused(lines):
    assert verified(lines, [KEY.public]).faults


@given(st.tuples(*[st.text(max_size=20)] * 3), st.binary(min_size=32, max_size=32))
def test_two_records_with_other_fields_have_other_statements(texts, previous):
    actor, act, detail = texts
    record = AuditRecord(7, NOW, "command", actor, act, "m-1", detail=detail, previous=previous)
    for other in (
        replace(record, number=8),
        replace(record, actor=actor + act + "x", act=""),
        replace(record, detail=detail + '","x":"'),
        replace(record, subject="m-2"),
    ):
        assert other.statement("north") != record.statement("north")
    assert record.statement("north") != record.statement("south")
