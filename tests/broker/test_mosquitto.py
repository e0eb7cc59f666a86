"""The configuration we write, and what the check finds in those of others."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from aggregator.extensions.authority.access.mosquitto import (
    TlsFiles,
    check_mosquitto_config,
    mosquitto_config,
)

TLS = TlsFiles(Path("/ca"), Path("/crt"), Path("/key"), revoked=Path("/crl"))


def findings(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mosquitto.conf"
    path.write_text(text)
    return "\n".join(check_mosquitto_config(path))


def production(**more) -> str:
    settings = {"host": "0.0.0.0", "tls": TLS, "access": Path("/acl")} | more
    return mosquitto_config(8883, Path("/var/lib/gridfed"), **settings)


def test_written_configurations_pass_the_check(tmp_path):
    assert findings(tmp_path, production()) == ""
    assert findings(tmp_path, mosquitto_config(1883, Path("/x"))) == ""


def test_the_example_configuration_passes_the_check(tmp_path):
    example = Path(__file__).parents[2] / "examples" / "mosquitto.conf"
    assert check_mosquitto_config(example) == ()


@pytest.mark.parametrize(
    ("days", "finding"),
    [(30, ""), (3, "expires within 7 days"), (-1, "has expired: every device is refused")],
)
def test_a_revocation_list_near_its_end_is_reported(tmp_path, days, finding):
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    made = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")]))
        .last_update(now - timedelta(days=60))
        .next_update(now + timedelta(days=days))
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "revoked.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    found = findings(tmp_path, production(tls=replace(TLS, revoked=path)))
    assert finding in found
    assert bool(found) is bool(finding)


def test_a_file_that_is_no_revocation_list_is_reported(tmp_path):
    path = tmp_path / "revoked.pem"
    path.write_text("no certificates")
    assert "cannot be read" in findings(tmp_path, production(tls=replace(TLS, revoked=path)))


@pytest.mark.parametrize("missing", [{"tls": None}, {"access": None}])
def test_a_configuration_without_authentication_is_not_written(missing):
    with pytest.raises(ValueError, match="needs client certificates"):
        production(**missing)


@pytest.mark.parametrize(
    ("line", "instead", "finding"),
    [
        ("max_queued_messages 20000", "", "acknowledged and dropped"),
        ("max_queued_messages 20000", "max_queued_messages 0", "dropped everything"),
        ("max_queued_bytes 67108864", "", "exhaust the memory"),
        ("max_packet_size 263168", "", "one message may have 256 MB"),
        ("max_inflight_bytes 2097152", "", "bytes in flight are unlimited"),
        ("upgrade_outgoing_qos true", "", "quality 0 to a slow reader"),
        ("memory_limit 1073741824", "", "subscriptions of one client"),
        ("persistence true", "", "persistence is off"),
        ("autosave_interval 5", "", "autosave_interval above"),
        ("require_certificate true", "", "any client can connect"),
        ("use_identity_as_username true", "", "cannot identify clients"),
        ("use_username_as_clientid true", "", "take over another"),
        ("allow_anonymous false", "allow_anonymous true", "allow_anonymous is true"),
        ("acl_file /acl", "", "no acl_file"),
        ("certfile /crt", "", "nothing is encrypted"),
        ("tls_version tlsv1.2", "tls_version tlsv1.1", "is broken"),
        ("max_packet_size 263168", "max_packet_size 20480", "chunks must shrink"),
        ("persistence true", "persistence true\nretain_available false", "no device connects"),
        ("persistence true", "persistence true\ninclude_dir /etc/m", "not followed"),
    ],
)
def test_each_fault_is_reported_by_itself(tmp_path, line, instead, finding):
    text = production()
    assert line in text
    found = findings(tmp_path, text.replace(line, instead))
    assert finding in found
    assert found.count("\n") == 0


def test_each_listener_is_checked_separately(tmp_path):
    found = findings(tmp_path, production() + "listener 1883 192.168.1.1\n")
    assert "192.168.1.1: require_certificate" in found
    assert "0.0.0.0" not in found


def test_the_brokers_default_configuration_fails_the_check(tmp_path):
    found = findings(tmp_path, "# nothing but defaults\n")
    for word in ("no listener", "1000", "persistence is off"):
        assert word in found


def test_an_unreadable_access_file_is_reported(tmp_path):
    (tmp_path / "acl").mkdir()
    assert "cannot be read" in findings(tmp_path, production(access=tmp_path / "acl"))


def test_a_path_with_a_line_break_is_refused():
    with pytest.raises(ValueError, match=r"crl .*line break"):
        production(tls=replace(TLS, revoked=Path("/crl\nallow_anonymous true")))
