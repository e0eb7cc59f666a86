"""The store of answers about scores: what counts, what is refused, what a power cut leaves."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.extensions.scores.score_book import DAY, ScoreBook, histogram, newest_histogram
from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.scores import score_cells
from edge_sdk.extensions.scores.local_histogram import LocalHistogram
from edge_sdk.extensions.scores.messages import ScoreMessage

TODAY = 20_415
NOW = TODAY * DAY + 3_600_000


def answer(cell=4, *, day=TODAY, eps=1.0, name=score_cells.NAME, cells=8, how="k-ary"):
    return ScoreMessage(day, name, cells, how, eps, bytes((cell,)))


def test_the_first_answer_of_a_device_and_a_day_counts_also_after_a_restart(tmp_path):
    book = ScoreBook(tmp_path / "scores")
    assert book.record("meter-1", answer(4), NOW)
    assert not book.record("meter-1", answer(5), NOW)
    assert book.record("meter-2", answer(2), NOW)
    assert book.record("meter-1", answer(5, day=TODAY - 1), NOW)
    again = ScoreBook(tmp_path / "scores")
    assert not again.record("meter-1", answer(6), NOW)
    assert again.day(TODAY) == book.day(TODAY)
    (counts,) = again.day(TODAY).supported.values()
    assert counts == [2, 0, 0, 1, 0, 1, 0, 0, 0]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (answer(day=TODAY - 3), Reason.TOO_STALE),
        (answer(day=TODAY + 2), Reason.FROM_FUTURE),
        (answer(name="miss-rate"), Reason.UNKNOWN_KIND),
        (answer(cells=9), Reason.UNKNOWN_KIND),
        (answer(eps=0.4, how="unary"), Reason.BAD_SCALAR),
        (answer(8), Reason.MALFORMED),
        (answer(how="unary"), Reason.MALFORMED),
        (answer(eps=0.5), Reason.MALFORMED),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
def test_an_answer_that_no_device_sends_is_refused_and_not_stored(tmp_path, message, reason):
    book = ScoreBook(tmp_path / "scores", least=0.5)
    with pytest.raises(Refused) as caught:
        book.record("meter-1", message, NOW)
    assert caught.value.reason is reason
    assert not (tmp_path / "scores").exists()


def test_answers_with_different_epsilons_add_up(tmp_path):
    book, rng, truth = (
        ScoreBook(tmp_path / "scores"),
        random.Random(3),
        [0, 20, 40, 80, 160, 80, 20, 0],
    )
    number = 0
    for cell, devices in enumerate(truth):
        for _ in range(devices):
            eps = (0.5, 1.0, 4.0)[number % 3]
            one = LocalHistogram.best(8, eps)
            message = ScoreMessage(TODAY, score_cells.NAME, 8, one.how, eps, one.draw(cell, rng))
            assert book.record(f"meter-{number}", message, NOW)
            number += 1
    found = histogram(book, TODAY)
    assert (found["answers"], found["epsilon"]) == (400, [0.5, 1.0, 4.0])
    for one, devices in zip(found["cells"], truth, strict=True):
        assert abs(one["devices"] - devices) < 4 * one["error"]
        assert 20 < one["error"] < 60


def test_a_line_cut_off_or_damaged_is_no_answer_and_days_are_deleted(tmp_path, caplog):
    folder = tmp_path / "scores"
    book = ScoreBook(folder, keep=2)
    for number in range(3):
        book.record(f"meter-{number}", answer(), NOW)
    path = folder / f"{TODAY}.answers"
    lines = [line for line in path.read_bytes().splitlines() if line]
    path.write_bytes(b"\n".join([lines[0], b'{"device": 3}', lines[1], lines[2][:-5]]))
    again = ScoreBook(folder, keep=2)
    assert again.day(TODAY).devices == {"meter-0", "meter-1"}
    assert "stored score rejected" in caplog.text
    assert again.record("meter-9", answer(), NOW)
    assert ScoreBook(folder).day(TODAY).devices == {"meter-0", "meter-1", "meter-9"}
    again.record("meter-1", answer(day=TODAY + 3), NOW + 3 * DAY)
    assert again.stored_days() == [TODAY + 3]
    assert newest_histogram(again, TODAY + 4)["answers"] == 1
    assert newest_histogram(ScoreBook(tmp_path / "none"), TODAY) == {}


@settings(max_examples=50)
@given(st.integers(0, 2_932_896), st.integers(1, 64), st.floats(0.1, 10.0), st.binary(max_size=8))
def test_any_message_that_decodes_is_counted_or_refused(tmp_path_factory, day, cells, eps, blob):
    """Whatever a signed message holds, estimates stay finite."""
    book = ScoreBook(tmp_path_factory.mktemp("book") / "scores")
    for how in ("k-ary", "unary"):
        for one in (day, TODAY):
            try:
                message = ScoreMessage(one, score_cells.NAME, cells, how, eps, blob)
                book.record("meter-1", message, NOW)
            except (ValueError, Refused):
                continue
    counts, errors = book.day(TODAY).estimate()
    assert all(map(math.isfinite, (*counts, *errors)))
