"""PROTOCOL.md section 13 against the aggregator: the limits a device meets, and the answers."""

import re
from pathlib import Path

import pytest

from aggregator import daemon
from aggregator.config import AdmissionSection
from aggregator.ingress import uploads
from aggregator.ingress.content_server import Sending
from aggregator.ingress.rate_limits import BURST, RateLimiter, RateLimits
from aggregator.ingress.replies import pause
from aggregator.ingress.update_admission import ROWS
from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol import messages
from edge_sdk.protocol.transfer import IDLE

TEXT = (Path(messages.__file__).parent / "PROTOCOL.md").read_text("utf-8")
PART = re.search(r"^### What one device may use.*?(?=^## )", TEXT, re.MULTILINE | re.DOTALL)[0]
LINES = [line.split("|")[1:-1] for line in PART.splitlines() if line.startswith("| ")]
LIMITS = {what.strip(): (most.strip(), beyond.strip()) for what, most, beyond in LINES[1:]}


def numbers(what: str) -> list[int]:
    """All whole numbers in a row, without separators."""
    return [int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*", " ".join(LIMITS[what]))]


@pytest.fixture
def guard():
    return RateLimiter(RateLimits())


def taken(what, most=1_000_000) -> int:
    """How often something is allowed at once."""
    return next(i for i in range(most) if not what())


def allowed(charge) -> bool:
    try:
        charge()
    except Refused as refused:
        if refused.reason is not Reason.QUOTA:
            raise
        return False
    return True


def test_messages_a_minute(guard):
    at_once, again, wait = numbers("messages besides `chunk` and `signal`")
    assert AdmissionSection().messages_per_minute == at_once == again
    assert taken(lambda: allowed(lambda: guard.charge("m", "have", 1, 0.0))) == at_once
    assert taken(lambda: allowed(lambda: guard.charge("m", "have", 1, 60.0))) == again
    assert allowed(lambda: guard.charge("m", "chunk", 1, 60.0))
    assert pause(Reason.QUOTA) == wait


def test_a_refusal_for_too_much_is_told_once_a_minute(guard):
    for reason in (Reason.QUOTA, Reason.INTERNAL, Reason.BAD_SIGNATURE):
        said = [guard.may_answer("m", reason, now) for now in (0.0, 59.0, 61.0)]
        assert said == [True, False, True]
    assert not guard.may_answer("m", Reason.MALFORMED, 62.0)  # shares with BAD_SIGNATURE
    assert [guard.may_answer("m", Reason.REVOKED, t) for t in (0.0, 3599.0, 3601.0)] == [1, 0, 1]
    assert [guard.may_answer("m", Reason.EXPIRED, t) for t in (0.0, 0.9, 1.1)] == [1, 0, 1]


def test_requests_for_content(guard):
    at_once, a_second = numbers("answered `have`")
    assert taken(lambda: guard.may_pull("m", 0.0)) == at_once
    assert taken(lambda: guard.may_pull("m", 1.0)) == a_second


def test_bad_signatures(guard):
    count, seconds = numbers("bad signatures")
    for _ in range(count):
        guard.failed("m", 0.0)
    assert not guard.is_ignored("m", 0.0)
    guard.failed("m", 0.0)
    assert guard.is_ignored("m", seconds - 1.0)
    assert not guard.is_ignored("m", seconds + 1.0)


def test_bytes_follow_from_the_quota(founded):
    config = founded()
    day, quotas = config.admission.daily_bytes, daemon.terms_of(config).quotas
    sent, fetched = LIMITS["bytes sent"][0], LIMITS["bytes of content fetched"][0]
    assert "an eighth of `quota` at once" in sent
    assert quotas.volume == day // 8
    assert "larger of 16 MiB and an eighth of `quota` at once" in fetched
    assert quotas.download == max(16 << 20, day // 8)
    assert "an eighth of `quota` again in an hour" in fetched
    assert quotas.refill * 3600 == pytest.approx(day / 8)
    guard = RateLimiter(quotas)
    assert allowed(lambda: guard.charge("m", "chunk", day // 8, 0.0))
    assert not allowed(lambda: guard.charge("m", "chunk", day // 8, 3590.0))
    assert allowed(lambda: guard.charge("m", "chunk", day // 8, 3601.0))


def test_bytes_of_all_devices():
    assert numbers("bytes of content fetched by all devices") == [BURST]


def test_settled_numbers():
    assert numbers("settled numbers of one device") == [ROWS]


def test_how_long_an_offer_may_wait():
    said = re.search(r"^An offer may wait:.*?\n\n", TEXT, re.MULTILINE | re.DOTALL)[0]
    assert f"after {uploads.PATIENCE:,.0f} s without a repeat" in said
    assert f"at most {uploads.MESSAGES} chunks" in said
    ends = rf"`keep` \({uploads.KEEP:.0f} s\).*? or after {uploads.TURN:.0f} s;"
    assert re.search(ends + rf".*? kept for {IDLE:.0f} s", said, re.DOTALL)


def test_a_bitmap_has_the_bytes_that_its_chunks_need():
    grant = re.search(r"^### grant .*?(?=^###)", TEXT, re.MULTILINE | re.DOTALL)[0]
    assert "Exactly ⌈chunks/8⌉ bytes, unused bits 0; or empty" in grant
    sending = Sending(bytes(9 * 8192), 8192)
    for bad in (bytes(32), bytes(1), b"\x00\x02"):
        with pytest.raises(Refused, match="MALFORMED"):
            sending.heard(bad, 8)
    sending.heard(b"\x00\x01", 8)
    sending.heard(b"", 8)
