from edge_sdk.errors import LinkError, Reason, Refused, WireError

# Numbers are for ever: this table is a copy on purpose, so that a renumbering has to be said twice.
FINAL = {0, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 81, 89, 90}
PASSING = {*range(1, 12), 40, 41, 42, 43, 44, *range(60, 67), 80, 82, 83, 84, 85, 86, 87, 88}


def test_the_numbers_are_the_published_ones():
    assert {int(reason) for reason in Reason} == FINAL | PASSING
    assert (Reason.CLOSED, Reason.FORK, Reason.SAY_HELLO, Reason.BAD_COMMAND) == (20, 21, 42, 81)


def test_only_what_travels_in_a_receipt_is_final():
    assert {int(reason) for reason in Reason if reason.is_final} == FINAL


def test_a_refusal_names_its_reason_and_keeps_the_detail():
    refused = Refused(Reason.TOO_STALE, "3 versions behind")
    assert str(refused) == "TOO_STALE: 3 versions behind"
    assert (refused.reason, refused.detail) == (Reason.TOO_STALE, "3 versions behind")
    assert str(Refused(Reason.FORK)) == "FORK"


def test_one_base_catches_everything_the_wire_raises():
    assert issubclass(Refused, WireError)
    assert issubclass(LinkError, WireError)
