"""When certificates and lists run out: against the library that made them, and against noise."""

from __future__ import annotations

import datetime as dt
import math

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_sdk.link.tls_validity import DAY, Expiry, X509Error, expiry

KEY = ec.generate_private_key(ec.SECP256R1())
NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
PEM = serialization.Encoding.PEM
moments = st.integers(0, 4_000_000_000)  # 1970 to 2096: both ways in which X.509 writes a year
spans = st.tuples(moments, moments).map(sorted)


def at(second):
    return dt.datetime.fromtimestamp(second, dt.UTC)


def certificate(since, until, encoding=PEM):
    builder = (
        x509.CertificateBuilder()
        .subject_name(NAME)
        .issuer_name(NAME)
        .public_key(KEY.public_key())
        .serial_number(1)
        .not_valid_before(at(since))
        .not_valid_after(at(until))
    )
    return builder.sign(KEY, hashes.SHA256()).public_bytes(encoding)


def revoked(since, until):
    builder = x509.CertificateRevocationListBuilder().issuer_name(NAME)
    builder = builder.last_update(at(since)).next_update(at(until))
    return builder.sign(KEY, hashes.SHA256()).public_bytes(PEM)


PRIVATE = KEY.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
GOOD = certificate(1_000, 2_000)
REVOKED = revoked(1_000, 2_000)  # made once: an ECDSA signature has another length each time


@settings(max_examples=50)
@given(spans)
def test_the_dates_read_are_those_signed(span):
    since, until = span
    for kind in ("ca", "certificate"):
        assert expiry(certificate(*span), kind) == Expiry(kind, since, until, until)
    assert expiry(revoked(*span), "crl") == Expiry("crl", since, until, until)


@settings(max_examples=25)
@given(st.lists(spans, min_size=1, max_size=4))
def test_a_chain_ends_with_its_first_link_and_authorities_with_their_last(found):
    pem = b"a word before\n".join(certificate(*span) for span in found) + PRIVATE
    ends = [until for _, until in found]
    chain, roots = expiry(pem, "certificate"), expiry(pem, "ca")
    assert (chain.until, chain.over, chain.count) == (min(ends), min(ends), len(found))
    assert (roots.until, roots.over) == (min(ends), max(ends))
    assert chain.since == max(since for since, _ in found)
    assert roots.since == min(since for since, _ in found)


@settings(max_examples=200)
@given(st.data())
def test_damaged_files_are_refused_or_read_and_nothing_else(data):
    pem = bytearray(data.draw(st.sampled_from([GOOD, REVOKED, GOOD + PRIVATE])))
    for _ in range(data.draw(st.integers(0, 4))):
        pem[data.draw(st.integers(0, len(pem) - 1))] = data.draw(st.integers(0, 255))
    for kind in ("ca", "certificate", "crl"):
        try:
            told = str(expiry(bytes(pem), kind).count)
        except X509Error as error:
            told = str(error)
        assert "\n" not in told
        assert "MIG" not in told  # nothing of a key is repeated


@pytest.mark.parametrize(
    ("pem", "kind", "why"),
    [
        (PRIVATE, "certificate", "no certificate in it, but: private key"),
        (GOOD, "crl", "no list of revoked certificates in it, but: certificate"),
        (revoked(0, 9), "ca", "no certificate in it, but: list of revoked certificates"),
        (b"", "ca", "not a PEM file"),
        (certificate(0, 9, serialization.Encoding.DER), "certificate", "openssl"),
        (GOOD[:200] + GOOD[240:], "ca", "a certificate in it cannot be read"),
        (GOOD.replace(b"\n-----END", b"-----END")[:-40], "ca", "not a PEM file"),
    ],
)
def test_a_wrong_file_is_refused_with_a_sentence(pem, kind, why):
    with pytest.raises(X509Error, match=why):
        expiry(pem, kind)


def test_a_list_without_a_next_one_never_expires():
    """The library cannot make one; a stand-in has what the reader looks at."""
    never = Expiry("crl", 0.0, math.inf, math.inf)
    assert never.days(5.0) is None
    assert never.told(5.0) == "never expires"
    assert not never.is_near(1e12)
    assert not never.is_over(1e12)


@given(st.floats(0, 1e9), st.floats(0, 1e4), st.floats(0, 60))
def test_days_left_text_and_warning_agree(now, left, horizon):
    one = Expiry("certificate", now - 1e12, now + left * DAY, now + left * DAY)
    assert one.days(now) == math.floor((one.until - now) / DAY)
    assert one.is_near(now, horizon * DAY) == (now >= one.until - horizon * DAY)
    assert ("expired" in one.told(now)) == one.is_over(now)


@given(st.floats(0.1, 1e4), st.floats(0, 60), st.floats(0, 1))
def test_a_short_lived_certificate_is_reported_in_its_last_third(life, horizon, spent):
    one = Expiry("crl", 0.0, life * DAY, life * DAY)
    now = spent * one.until
    assert one.is_near(now, horizon * DAY) == (now >= one.until - min(horizon * DAY, one.until / 3))


def test_a_clock_before_the_first_day_is_doubted_not_the_file():
    one = Expiry("certificate", 1_800_000_000.0, 1_900_000_000.0, 1_900_000_000.0)
    assert one.told(3_600.0) == "not valid before 2027-01-15: is this machine's clock right?"
    assert one.is_near(3_600.0)
    assert not one.is_over(3_600.0)
