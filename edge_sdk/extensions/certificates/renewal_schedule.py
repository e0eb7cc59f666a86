"""Decide when a device's certificate is renewed and a failed renewal is repeated. Pure: times come in.

All times scale with the certificate's validity; the figures in brackets are those of 30 days.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import asdict
from random import Random
from typing import Any, Final

from edge_sdk.app.lean_dataclass import dataclass

NOTE: Final = "certificate renewal"
"""Name of the stored note about failed renewals."""

HALF: Final = 0.5
SPREAD: Final = 0.1  # of the validity, after its half (3 days)
FIRST_WAIT: Final = 1 / 720  # of the validity, before the first repetition (1 hour)
LONGEST_WAIT: Final = 1 / 30  # of the validity (1 day)
SHORTEST_WAIT: Final = 1.0  # s
PENDING: Final = 202  # HTTP status: the operator must approve (RFC 7030, section 4.2.3)
BROKER: Final = -1  # the broker refuses the new certificate
CLOCK: Final = -2  # the new certificate is past its half
_DOUBLINGS: Final = 16
_TEXT_LIMIT: Final = 500  # characters of an error that are stored


def jitter_of(name: str, until: float) -> float:
    """Return a fraction from 0 to 1, fixed for one device and one certificate.

    The devices of a fleet that enrolled on one day renew on different ones; a restart draws nothing
    new.

    Args:
        until: End of the certificate's validity, Unix seconds.

    >>> 0.0 <= jitter_of("meter-1", 1.8e9) < 1.0
    True
    >>> jitter_of("meter-1", 1.8e9) == jitter_of("meter-2", 1.8e9)
    False
    """
    drawn = hashlib.sha256(f"{name}\n{int(until)}".encode()).digest()
    return int.from_bytes(drawn[:8], "big") / 2**64


def due_at(since: float, until: float, fraction: float) -> float:
    """Return when a renewal is due: from half of the validity on, up to a tenth of it later.

    Args:
        since: Start of validity, Unix seconds.
        until: End of validity, Unix seconds.
        fraction: Jitter, from 0 to 1.

    >>> due_at(0.0, 100.0, 0.0), due_at(0.0, 100.0, 1.0)
    (50.0, 60.0)
    """
    return since + (until - since) * (HALF + SPREAD * fraction)


def wait_after(failures: int, validity: float, rng: Random, *, is_expired: bool = False) -> float:
    """Return the seconds to wait after a failed renewal, 50 to 100 % of a bound that doubles.

    Args:
        failures: Number of failures without a success between them, at least 1.
        validity: Length of the certificate's validity, seconds.
        rng: Source of the jitter.
        is_expired: True for a certificate with which the device cannot connect any more: then the
            bound stays at its first value.

    >>> day, rng = 86_400.0, Random(1)
    >>> [0.5 <= wait_after(n, 30 * day, rng) / 3600 / 2 ** (n - 1) <= 1 for n in (1, 2, 3)]
    [True, True, True]
    >>> wait_after(99, 30 * day, rng) <= day, wait_after(99, 20.0, rng) >= 1.0
    (True, True)
    """
    doublings = 0 if is_expired else min(failures - 1, _DOUBLINGS)
    bound = min(validity * FIRST_WAIT * 2.0**doublings, validity * LONGEST_WAIT)
    return max(SHORTEST_WAIT, bound * rng.uniform(0.5, 1.0))


@dataclass(frozen=True, slots=True)
class RenewalFailure:
    """The last failed renewal, kept across restarts: a device that is restarted keeps its back-off.

    >>> failure = RenewalFailure(2, "refused", 403, 1.8e9)
    >>> RenewalFailure.read(failure.written()) == failure
    True
    >>> RenewalFailure.read(b"damaged").failures
    0
    """

    failures: int = 0  # number of failures without a success between them; 0 without any
    why: str = ""
    status: int = 0  # HTTP status of the server's answer; 0 without one; or BROKER or CLOCK
    retry: float = 0.0  # time of the next attempt, Unix seconds

    def written(self) -> bytes:
        return json.dumps(asdict(self) | {"why": self.why[:_TEXT_LIMIT]}).encode()

    @classmethod
    def read(cls, note: bytes | None) -> RenewalFailure:
        """Return a stored note; an empty one for none, or one that cannot be read."""
        try:
            found = json.loads(note or b"{}")
            return cls(
                failures=max(0, min(int(found.get("failures", 0)), 2**31)),
                why=str(found.get("why", "")),
                status=int(found.get("status", 0)),
                retry=max(0.0, min(float(found.get("retry", 0.0)), 2.0**40)),
            )
        except (ValueError, TypeError, AttributeError, OverflowError):
            return cls()

    def remedy(self, device: str) -> str:
        """Return the remedy for the operator.

        >>> RenewalFailure(1, "", 202).remedy("meter-1")
        'an operator must approve: gridfed-aggregator ca approve meter-1'
        """
        if self.status == PENDING:
            return f"an operator must approve: gridfed-aggregator ca approve {device}"
        if self.status == BROKER:
            return "compare the broker's cafile and crlfile with those of the authority"
        if self.status == CLOCK:
            return "set this machine's clock"
        if self.status:
            return "see Refusals in docs/enrolment.md: gridfed-aggregator ca status"
        return "check ca.url, the network, the clock, and that the certificate's folder is writable"


def summary(
    device: str,
    name: str,
    span: tuple[float, float] | None,
    now: float,
    failure: RenewalFailure,
    *,
    is_unconfirmed: bool,
) -> dict[str, Any]:
    """Return the state of a device's certificate for its status.

    Args:
        span: Start and end of its validity, Unix seconds; None if it cannot be read.
        now: Present time, Unix seconds.
        is_unconfirmed: True if the former certificate is kept, since no broker has accepted the
            new one yet.

    >>> summary("m", "m", (0.0, 864e3), 1e5, RenewalFailure(), is_unconfirmed=False)["state"]
    'valid'
    >>> summary("m", "m", (0.0, 864e3), 9e5, RenewalFailure(), is_unconfirmed=False)["state"]
    'expired; it is renewed with the identity key'
    """
    if span is None:
        return {"state": "cannot be read"}
    since, until = span
    due = due_at(since, until, jitter_of(name, until))
    state = "valid"
    if failure.status == PENDING:
        state = failure.remedy(device)
    elif now >= until:
        state = "expired; it is renewed with the identity key"
    elif is_unconfirmed:
        state = "new; the former one is kept until a broker accepts it"
    elif now >= due:
        state = "due for renewal"
    found: dict[str, Any] = {
        "valid until": minute_of(until),
        "renews from": minute_of(due),
        "state": state,
    }
    if failure.failures:
        found |= {"failures": failure.failures, "why": failure.why, "do": failure.remedy(device)}
        found["next attempt"] = minute_of(failure.retry)
    return found


def minute_of(moment: float) -> str:
    """Return a moment in UTC, to the minute.

    >>> minute_of(1_800_000_000.0)
    '2027-01-15 08:00 UTC'
    """
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(moment))
