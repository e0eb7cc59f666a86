"""Files that expire: found, read again when they change, and warned of once a day."""

from __future__ import annotations

import os
import ssl
import time

import pytest

from edge_sdk.link.tls_files import load
from edge_sdk.link.tls_validity import (
    DAY,
    ExpiredFileError,
    Watch,
    X509Error,
    files,
    look,
    refuse_expired,
)
from tests.broker.authority import Authority


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path, "authority", days=(-1.0, 400.5))


def of(authority, days=(-300.0, 90.5)):
    certificate, _ = authority.issue("_agg", days=days)
    return files(
        "mqtts://broker", authority.file, certificate, authority.revoked(days=(-30.0, 7.5))
    )


def test_every_file_that_is_named_is_read(authority):
    seen = list(look(of(authority)))
    assert [(one.file.kind, one.days(time.time())) for one in seen] == [
        ("ca", 400), ("certificate", 90), ("crl", 7),
    ]  # fmt: skip
    assert files("mqtts://broker") == ()


def test_an_expiring_file_is_reported_once_a_day_and_only_near_its_end(authority):
    watch, now = Watch(of(authority)), time.time()
    assert [one.file.kind for one in watch.warnings(now)] == ["crl"]
    assert watch.warnings(now + DAY / 2) == []
    assert [one.told(now + DAY) for one in watch.warnings(now + DAY)] == ["6 days left"]
    kinds = {one.file.kind for one in watch.warnings(now + 70 * DAY)}
    assert kinds == {"certificate", "crl"}
    assert watch.warnings(now - DAY) != []  # a clock that was put back does not silence it
    watch.horizon = 100 * DAY
    assert [one.file.kind for one in watch.warnings(now - DAY + 60)] == ["certificate"]


def test_a_renewed_file_is_read_again_and_an_unchanged_one_is_not(authority, monkeypatch):
    watch, now = Watch(of(authority)), time.time()
    watch.warnings(now)
    reads = []
    monkeypatch.setattr(
        "edge_sdk.link.tls_validity.expiry", lambda pem, kind: reads.append(kind) or 1 / 0
    )
    watch.look()
    assert reads == []
    monkeypatch.undo()
    authority.revoked(days=(-1 / 24, 30.5))
    os.utime(watch.files[2].path, ns=(1, 1))
    assert watch.look()[2].days(now) == 30
    assert watch.warnings(now) == []
    assert watch.warnings(now + 20 * DAY) == []
    assert [one.file.kind for one in watch.warnings(now + 21 * DAY)] == ["crl"]


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: path.unlink(), "No such file"),
        (lambda path: path.write_bytes(b"gone"), "not a PEM file"),
        (lambda path: (path.unlink(), path.mkdir()), "not a file"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "not a file"),
    ],
)
def test_a_file_that_cannot_be_read_counts_as_expired(authority, spoil, why):
    named = of(authority)
    watch = Watch(named)
    watch.look()
    spoil(named[1].path)
    seen = watch.look()[1]
    assert seen.until == 0.0
    assert why in seen.told(0.0)
    assert seen.days(0.0) is None
    assert [one.file.kind for one in watch.warnings(time.time())] == ["certificate", "crl"]
    with pytest.raises(X509Error, match=r"broker\.cert_file: .*_agg\.crt: "):
        named[1].read()


def test_files_that_are_no_longer_named_are_forgotten(authority):
    watch = Watch(of(authority))
    watch.look()
    watch.files = watch.files[:1]
    assert [one.file.kind for one in watch.look()] == ["ca"]
    assert len(watch.seen) == 1


def test_files_are_loaded_into_a_context_or_all_are_named(tmp_path):
    context = load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    (tmp_path / "ca.pem").write_text("x")
    with pytest.raises(OSError, match=r"cannot use the TLS files \S+ca\.pem, own\.pem, own\.key: "):
        load(context, tmp_path / "ca.pem", "own.pem", "own.key")


def test_an_expired_file_is_refused_and_named(tmp_path):
    old = Authority(tmp_path, "ca", days=(-9.0, -1.5))
    with pytest.raises(
        ExpiredFileError, match=r"broker\.ca_file: \S+: expired 1 day ago"
    ) as caught:
        refuse_expired(files("mqtts://broker", old.file), time.time())
    assert caught.value.file.kind == "ca"
