"""Read the validity of a TLS link's certificates and revocation lists. Pure: bytes in.

They expire without notice, years after they were issued, and then every connection fails.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from edge_sdk.wire.errors import WireError

Kind = Literal["ca", "certificate", "crl"]

DAY: Final = 86_400.0
"""Seconds."""

HORIZON: Final = 30 * DAY
"""Seconds before the end at which warnings start: enough time to arrange a renewal.

The last third of the validity, if that is shorter: a revocation list is valid for days.
"""

_BLOCK: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)
_LABELS: Final = {"CERTIFICATE": "certificate", "X509 CERTIFICATE": "certificate"} | {
    "X509 CRL": "list of revoked certificates"
}
_HOLDS: Final[dict[Kind, str]] = {
    "ca": "certificate",
    "certificate": "certificate",
    "crl": "list of revoked certificates",
}


class X509Error(WireError):
    """An error: a file without the expected content, or one that cannot be read."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """Validity of one file.

    Attributes:
        kind: Purpose of the file.
        since: Start of validity, Unix seconds.
        until: End of the first part that expires, Unix seconds; infinite if none ever does.
        over: Time at which no part is usable any more. A chain ends with its first certificate, a
            file of authorities with its last one.
        count: Number of certificates or lists in the file.

    Example:
        An authority and its successor in one file: the old one's end is reported, the file works:

        >>> both = Expiry("ca", since=0.0, until=3 * DAY, over=900 * DAY, count=2)
        >>> both.told(1.5 * DAY), both.told(4 * DAY), both.is_over(4 * DAY)
        ('1 day left, the first of 2', 'expired 1 day ago, the first of 2', False)
        >>> Expiry("crl", 0.0, 3 * DAY, 3 * DAY).is_over(3 * DAY)
        True
    """

    kind: Kind
    since: float
    until: float
    over: float
    count: int = 1

    def is_over(self, now: float) -> bool:
        """Return whether the file is unusable at ``now`` (Unix seconds)."""
        return now >= self.over

    def is_near(self, now: float, horizon: float = HORIZON) -> bool:
        """Return whether to warn: it ends within ``horizon`` seconds, or is not yet valid.

        >>> weekly = Expiry("crl", since=0.0, until=6 * DAY, over=6 * DAY)
        >>> [weekly.is_near(t * DAY) for t in (-1, 0, 3, 4, 9)]
        [True, False, False, True, True]
        """
        last = min(horizon, (self.until - self.since) / 3)
        return now >= self.until - last or now < self.since

    def days(self, now: float) -> int | None:
        """Return whole days left, negative once it has expired; None if it never does.

        >>> [Expiry("ca", 0.0, 2 * DAY, 2 * DAY).days(t * DAY) for t in (0.5, 1.5, 2.5)]
        [1, 0, -1]
        """
        return None if math.isinf(self.until) else math.floor((self.until - now) / DAY)

    def told(self, now: float) -> str:
        """Describe the validity for the operator."""
        among = f", the first of {self.count}" if self.count > 1 else ""
        if now < self.since:
            return f"not valid before {day_of(self.since)}: is this machine's clock right?"
        left = self.days(now)
        if left is None:
            return "never expires"
        if now >= self.until:
            return f"expired {_days(math.floor((now - self.until) / DAY))} ago{among}"
        return f"{_days(left)} left{among}"


def expiry(pem: bytes, kind: Kind) -> Expiry:
    r"""Read the validity of a PEM file. Anything else in it, such as a key, is ignored.

    Args:
        pem: The file's bytes.
        kind: Expected content: certificates, or revocation lists.

    Raises:
        X509Error: It holds no such content, or content that cannot be read.

    Example:
        >>> expiry(b"-----BEGIN PRIVATE KEY-----\nMC4C\n-----END PRIVATE KEY-----", "ca")
        Traceback (most recent call last):
        edge_sdk.wire.link.x509_expiry.X509Error: no certificate in it, but: private key
    """
    wanted = _HOLDS[kind]
    blocks = [(match[1].decode(), match[0]) for match in _BLOCK.finditer(pem)]
    found = [_span(block, label, wanted) for label, block in blocks if _LABELS.get(label) == wanted]
    if not found:
        held = sorted({_LABELS.get(label, label.lower()) for label, _ in blocks})
        raise X509Error(
            f"no {wanted} in it, but: {', '.join(held)}"
            if held
            else f"no {wanted} in it: not a PEM file (openssl … -inform DER turns it into one)"
        )
    begins, ends = zip(*found, strict=True)
    if kind == "ca":
        return Expiry(kind, min(begins), min(ends), max(ends), len(found))
    return Expiry(kind, max(begins), min(ends), min(ends), len(found))


def _span(pem: bytes, label: str, what: str) -> tuple[float, float]:
    from cryptography import x509  # noqa: PLC0415 - only where a link has such files

    try:
        if label == "X509 CRL":
            revoked = x509.load_pem_x509_crl(pem)
            return _moment(revoked, "last_update"), _moment(revoked, "next_update")
        certificate = x509.load_pem_x509_certificate(pem)
        return _moment(certificate, "not_valid_before"), _moment(certificate, "not_valid_after")
    except (ValueError, TypeError, OverflowError, x509.InvalidVersion) as error:
        raise X509Error(f"a {what} in it cannot be read") from error


def _moment(dated: Any, name: str) -> float:  # noqa: ANN401 - a certificate or a list
    """Read a date as Unix seconds; from cryptography 42 on its old name warns.

    A list may leave out its next update: then it never expires.
    """
    aware = f"{name}_utc"
    date: datetime | None = getattr(dated, aware if hasattr(dated, aware) else name)
    return math.inf if date is None else date.replace(tzinfo=UTC).timestamp()


def day_of(moment: float) -> str:
    """Return a moment's date in UTC.

    >>> day_of(1_800_000_000.0)
    '2027-01-15'
    """
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d")


def _days(count: int) -> str:
    return "1 day" if count == 1 else f"{count} days"
