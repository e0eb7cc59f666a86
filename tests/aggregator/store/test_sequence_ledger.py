"""The ledger's rules, and the two scripts that random walks do not find."""

from aggregator.store.ledgers import (
    Ledger,
    LedgerRow,
    Standing,
    after_hello,
    charged,
    standing,
    used,
)
from edge_sdk.protocol.messages import HelloMessage


def hello(life, *, spent=0, lost=False, listed=()):
    return HelloMessage(life, bytes(16), spent, lost, listed, (1, 1), (), "1", 1)


def heard(ledger, said, digest):
    after, welcome = after_hello(ledger, said, digest, hold=2)
    assert welcome
    return after


def test_only_use_promotes():
    """F1: a delayed hello of a lost store must not close the running process's entries."""
    ledger = used(heard(Ledger(), hello(1), b"1"), 1)
    delayed = heard(ledger, hello(2, lost=True), b"2")
    assert delayed.cur == 1
    assert standing(delayed, (1, 5), b"x", None) is Standing.NEW
    assert standing(used(delayed, 2), (1, 5), b"x", None) is Standing.CLOSED


def test_numbers_of_the_lives_between_stay_admissible():
    """F2: several hellos may pass before any release arrives."""
    ledger = used(heard(Ledger(), hello(1), b"1"), 1)
    ledger = heard(ledger, hello(2, listed=((1, 1),)), b"2")
    ledger = heard(ledger, hello(3, listed=((1, 1), (2, 1))), b"3")
    promoted = used(ledger, 3)
    assert promoted.open == ((1, 1), (2, 1))
    assert standing(promoted, (2, 1), b"x", None) is Standing.NEW
    assert standing(ledger, (2, 1), b"x", None) is Standing.NEW


def test_the_margin_is_saved_with_the_hello():
    """F3: repeated losses of the store stay covered."""
    ledger = used(heard(Ledger(), hello(1), b"1"), 1)
    ledger = heard(charged(ledger, 4), hello(2, lost=True), b"2")
    assert ledger.spent == 6
    assert heard(ledger, hello(3, lost=True), b"3").spent == 8


def test_what_was_closed_is_never_opened_again():
    """F4: a restored image lists an entry that was settled and pruned long ago."""
    ledger = used(heard(Ledger(), hello(1), b"1"), 1)  # (1, 1) is receipted
    ledger = used(heard(ledger, hello(2), b"2"), 2)  # nothing open: its row is pruned
    ledger = used(heard(ledger, hello(3, listed=((1, 1),)), b"3"), 3)
    assert ledger.open == ()
    assert standing(ledger, (1, 1), b"body", None) is Standing.CLOSED


def test_rows_decide_before_lives_do():
    row = LedgerRow(b"body", 0, 1, 1)
    ledger = used(heard(Ledger(), hello(3), b"3"), 3)
    assert standing(ledger, (1, 1), b"body", row) is Standing.REPEAT
    assert standing(ledger, (1, 1), b"else", row) is Standing.FORK
    assert standing(ledger, (4, 1), b"x", None) is Standing.UNKNOWN_LIFE


def test_an_older_life_promotes_nothing():
    ledger = used(heard(Ledger(), hello(2), b"2"), 2)
    assert used(ledger, 1) == ledger
    assert used(ledger, 2) == ledger
    assert used(ledger, 3) == ledger
