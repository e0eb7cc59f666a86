"""An export of the log of models is verified from the file alone."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.extensions.model_log.log_export import verified
from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.model_log import signed_note
from edge_sdk.protocol import keys
from tests.aggregator.extensions.audit.exported_log import ROOT, printed, write_log
from tests.aggregator.extensions.model_log.log_writer import ENDS, history

VECTOR = ROOT / "tests" / "vectors" / "model-log.jsonl"
PUBLIC = [ENDS.signer.public]
WITNESS = keys.from_seed(b"w" * 32)
GOLDEN = tuple(VECTOR.read_text("utf-8").splitlines())


@pytest.fixture
def honest(tmp_path):
    return history(tmp_path / "honest.db", [b""] * 7)


@pytest.fixture
def split(tmp_path):
    """Three models as the others have them, then models of its own."""
    return history(tmp_path / "split.db", [b"", b"", b"", b"own", b"own", b"own", b"own"])


def test_the_golden_vector_is_what_is_written_and_read(tmp_path):
    assert history(tmp_path / "fleet.db", [b""] * 3)[-1] == list(GOLDEN)
    log = verified(GOLDEN, PUBLIC)
    assert (log.leaves, log.root(3)) == (3, log.note.checkpoint.root)


def test_every_export_continues_every_earlier_one(honest):
    logs = [verified(lines, PUBLIC) for lines in honest]
    for n, later in enumerate(logs):
        for earlier in logs[: n + 1]:
            later.require_continues(earlier.note)


@pytest.mark.parametrize("common", [0, 1, 2])
def test_a_log_that_continues_the_common_part_is_no_fork_yet(honest, split, common):
    verified(honest[-1], PUBLIC).require_continues(verified(split[common], PUBLIC).note)


@pytest.mark.parametrize("size", [4, 5, 6, 7])
def test_a_planted_model_is_a_fork_from_its_own_round_on(honest, split, size):
    device = verified(split[size - 1], PUBLIC).note
    with pytest.raises(Refused) as refused:
        verified(honest[-1], PUBLIC).require_continues(device)
    assert refused.value.reason is Reason.LOG_FORK


def test_a_shorter_log_is_a_rollback_and_another_key_no_evidence(honest):
    short, long = verified(honest[2], PUBLIC), verified(honest[5], PUBLIC)
    with pytest.raises(Refused) as refused:
        short.require_continues(long.note)
    assert refused.value.reason is Reason.ROLLBACK
    forged = signed_note.signed(short.note.checkpoint, WITNESS)
    with pytest.raises(Refused) as refused:
        long.require_continues(forged)
    assert refused.value.reason is Reason.BAD_SIGNATURE


def changed(number, **values):
    lines = list(GOLDEN)
    lines[number] = json.dumps({**json.loads(lines[number]), **values})
    return lines


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (changed(2, round=9), Reason.BAD_DIGEST),
        (changed(2, digest="0" * 63 + "1"), Reason.BAD_DIGEST),
        (GOLDEN[:-1], Reason.BAD_DIGEST),
        ((*GOLDEN, *GOLDEN[-1:]), Reason.MALFORMED),
        ((GOLDEN[0], GOLDEN[2], GOLDEN[1], GOLDEN[3]), Reason.MALFORMED),
        (changed(1, digest="A" * 64), Reason.MALFORMED),
        (changed(1, round=True), Reason.MALFORMED),
        (changed(1, round=-1), Reason.MALFORMED),
        (changed(1, more=1), Reason.MALFORMED),
        (changed(0, format="gridfed-model-log/2"), Reason.MALFORMED),
        (changed(0, run=2), Reason.MALFORMED),
        ((), Reason.MALFORMED),
    ],
)
def test_a_changed_export_is_refused_by_reason(lines, reason):
    with pytest.raises(Refused) as refused:
        verified(lines, PUBLIC)
    assert refused.value.reason is reason


def test_an_export_of_another_signer_is_refused():
    with pytest.raises(Refused) as refused:
        verified(GOLDEN, [WITNESS.public])
    assert refused.value.reason is Reason.BAD_SIGNATURE


@given(st.integers(0, 3), st.integers(0, 900), st.text(max_size=4))
def test_no_change_of_a_line_is_another_log(number, place, text):
    """A changed line either says the same in other spaces or is refused; nothing else is raised."""
    line = GOLDEN[number]
    lines = list(GOLDEN)
    lines[number] = line[:place] + text + line[place + len(text) :]
    try:
        log = verified(lines, PUBLIC)
    except Refused:
        return
    assert log.note.checkpoint == verified(GOLDEN, PUBLIC).note.checkpoint


@given(st.lists(st.text(max_size=200), max_size=4))
def test_any_text_is_refused(lines):
    with pytest.raises(Refused):
        verified(lines, PUBLIC)


# --- the command, as anybody runs it -------------------------------------------------


def call(folder, lines, *more):
    write_log(folder, lines, PUBLIC[0])
    public = ("--public", "aggregator.pub")
    return printed(folder, "aggregator", "log", more[0], "export.jsonl", *public, *more[1:])


def test_a_device_that_was_given_another_model_is_found_by_its_note(tmp_path, honest, split):
    for name, lines in (("first", honest[4]), ("second", split[4])):
        (tmp_path / name).write_text(verified(lines, PUBLIC).note.text, "utf-8")
    code, found = call(tmp_path, honest[6], "verify", "--against", "first", "second")
    assert (code, [one["reason"] for one in found["notes"]]) == (1, ["", "LOG_FORK"])
