"""Signed checkpoints are C2SP notes: the keys and signatures of other programs are read alike."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.extensions.model_log import signed_note as notes
from edge_sdk.protocol import keys

# The example key, text and signature of Go's package note.
NAME, KEY_ID = "PeterNeumann", "c74f20a3"
PUBLIC = base64.b64decode("ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW")[1:]
TEXT = (
    "If you think cryptography is the answer to your problem,\n"
    "then you don't know what your problem is.\n"
)
SIGNATURE = (
    "x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM="
)
KEY = keys.from_seed(bytes(range(32)))
WITNESS = keys.from_seed(bytes(range(32, 64)))
CHECKPOINT = notes.Checkpoint("gridfed-log/1/north/7", 41, bytes(range(32)))


def test_key_ids_and_signatures_are_those_of_go():
    assert notes.key_id(NAME, PUBLIC, 1).hex() == KEY_ID
    go = base64.b64decode("Ac4zctda0e5eza+HJyk9SxEdh+s3Ux18htTTAD8OuAn8")[1:]
    assert notes.key_id("sum.golang.org", go, 1).hex() == "033de0ae"
    raw = base64.b64decode(SIGNATURE)
    assert raw[:4].hex() == KEY_ID
    assert keys.verify(PUBLIC, raw[4:], TEXT.encode())


def test_a_checkpoint_is_signed_by_its_log_and_cosigned_by_a_witness():
    note = notes.signed(CHECKPOINT, KEY)
    assert note.is_signed_by(KEY.public)
    assert not note.is_signed_by(WITNESS.public)
    both = notes.cosigned(note, "example.com/w", WITNESS, 1_790_000_000)
    again = notes.read_note(both.text)
    assert again == both
    assert again.is_signed_by(KEY.public)
    assert again.cosigned_at(notes.WitnessKey("example.com/w", WITNESS.public)) == 1_790_000_000
    assert again.cosigned_at(notes.WitnessKey("example.com/v", WITNESS.public)) is None
    later = notes.cosigned(both, "example.com/w", WITNESS, 1_790_000_060)
    assert len(later.signatures) == 2


def test_a_cosignature_of_another_time_or_checkpoint_does_not_count():
    witness = notes.WitnessKey("example.com/w", WITNESS.public)
    both = notes.cosigned(notes.signed(CHECKPOINT, KEY), "example.com/w", WITNESS, 1_790_000_000)
    own = both.signatures[1]
    later = notes.NoteSignature(own.name, own.id, bytes(8) + own.signature[8:])
    assert notes.SignedCheckpoint(CHECKPOINT, (later,)).cosigned_at(witness) is None
    other = notes.Checkpoint(CHECKPOINT.origin, 42, CHECKPOINT.root)
    assert notes.SignedCheckpoint(other, both.signatures).cosigned_at(witness) is None
    assert not notes.SignedCheckpoint(other, both.signatures).is_signed_by(KEY.public)


GOOD = notes.signed(CHECKPOINT, KEY).text


@pytest.mark.parametrize(
    "text",
    [
        "",
        GOOD[:-1],
        GOOD.replace("\n41\n", "\n041\n"),
        GOOD.replace("\n41\n", "\n-1\n"),
        GOOD.replace("\n41\n", "\n41\nmore\n"),
        GOOD.replace("\N{EM DASH}", "-"),
        GOOD.replace("AAECAwQF", "AAECAwQ"),
        GOOD.replace("\n\n", "\n"),
        f"{GOOD}{'x' * notes.NOTE_LIMIT}",
        GOOD + GOOD,
    ],
)
def test_a_text_that_is_no_checkpoint_is_refused(text):
    with pytest.raises(notes.NoteError):
        notes.read_note(text)


@given(st.integers(0, len(GOOD) - 1), st.characters(max_codepoint=255))
def test_a_changed_character_is_refused_or_not_signed(at, other):
    text = GOOD[:at] + other + GOOD[at + 1 :]
    try:
        found = notes.read_note(text)
    except notes.NoteError:
        return
    assert text == GOOD or not found.is_signed_by(KEY.public)


@pytest.mark.parametrize("text", ["", "w+1+2", f"w+{'0' * 8}+{'A' * 44}", "a b+00000000+BAA="])
def test_a_text_that_is_no_verifier_key_is_refused(text):
    with pytest.raises((notes.NoteError, keys.KeyFileError)):
        notes.WitnessKey.parse(text)


def test_a_verifier_key_reads_back():
    key = notes.WitnessKey("example.com/w", WITNESS.public)
    assert notes.WitnessKey.parse(key.text) == key
