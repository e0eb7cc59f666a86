"""The command ``ca``: what it issues, what it refuses, and what survives a power cut."""

from __future__ import annotations

import json
import signal
import ssl
import stat
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509 as reader
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given
from hypothesis import strategies as st

from aggregator.commands.main import main
from aggregator.extensions.authority import certificates as made
from aggregator.extensions.authority import folder as authority
from aggregator.extensions.authority.certificate_reader import CertificateError
from edge_sdk.errors import OK, RUNTIME, USAGE

NOW = datetime(2026, 11, 22, tzinfo=UTC)


def ca(*words):
    return main(["ca", *map(str, words)])


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "ca"
    assert ca("init", place) == OK
    return place


def certificate(path):
    return reader.load_pem_x509_certificate(path.read_bytes())


def test_a_device_receives_a_certificate_for_clients_with_its_id_as_name(folder):
    assert ca("issue", "meter-1", "--folder", folder) == OK
    found = certificate(folder / "issued" / "meter-1.pem")
    (name,) = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert name.value == "meter-1"
    uses = found.extensions.get_extension_for_class(reader.ExtendedKeyUsage).value
    assert list(uses) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not found.extensions.get_extension_for_class(reader.BasicConstraints).value.ca
    found.verify_directly_issued_by(certificate(folder / "ca.pem"))
    key = serialization.load_pem_private_key((folder / "issued" / "meter-1.key").read_bytes(), None)
    assert key.public_key() == found.public_key()


def test_private_keys_are_readable_by_their_owner_only_and_certificates_by_all(folder):
    ca("issue", "meter-1", "--folder", folder)
    modes = {
        name: stat.S_IMODE((folder / name).stat().st_mode)
        for name in ("ca.key", "issued/meter-1.key", "ca.pem", "issued/meter-1.pem", "revoked.pem")
    }
    assert modes == {
        "ca.key": 0o600,
        "issued/meter-1.key": 0o600,
        "ca.pem": 0o644,
        "issued/meter-1.pem": 0o644,
        "revoked.pem": 0o644,
    }


def test_a_broker_names_its_hosts(folder, capsys):
    assert ca("issue", "mqtt", "--role", "broker", "--folder", folder) == USAGE
    assert "at least one host name or address" in capsys.readouterr().err
    hosts = ("--host", "mqtt.example.org", "--host", "::1")
    assert ca("issue", "mqtt", "--role", "broker", "--folder", folder, *hosts) == OK
    found = certificate(folder / "issued" / "mqtt.pem")
    names = found.extensions.get_extension_for_class(reader.SubjectAlternativeName).value
    assert names.get_values_for_type(reader.DNSName) == ["mqtt.example.org"]
    assert [str(one) for one in names.get_values_for_type(reader.IPAddress)] == ["::1"]


def test_a_request_keeps_the_key_with_its_holder(folder, tmp_path):
    key = ec.generate_private_key(ec.SECP256R1())
    named = reader.Name([reader.NameAttribute(NameOID.COMMON_NAME, "somebody-else")])
    request = reader.CertificateSigningRequestBuilder().subject_name(named)
    file = tmp_path / "meter-1.csr"
    file.write_bytes(request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    assert ca("issue", "meter-1", "--folder", folder, "--csr", file) == OK
    found = certificate(folder / "issued" / "meter-1.pem")
    assert found.public_key() == key.public_key()
    assert found.subject.rfc4514_string() == "CN=meter-1"  # the operator names the device
    assert not (folder / "issued" / "meter-1.key").exists()


def test_a_request_that_was_changed_is_refused(folder, tmp_path, capsys):
    key = ec.generate_private_key(ec.SECP256R1())
    named = reader.Name([reader.NameAttribute(NameOID.COMMON_NAME, "m")])
    request = reader.CertificateSigningRequestBuilder().subject_name(named)
    der = bytearray(request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER))
    der[-1] ^= 1
    changed = reader.load_der_x509_csr(bytes(der)).public_bytes(serialization.Encoding.PEM)
    file = tmp_path / "meter-1.csr"
    for content in (changed, b"no request", b""):
        file.write_bytes(content)
        assert ca("issue", "meter-1", "--folder", folder, "--csr", file) == USAGE
        assert "request" in capsys.readouterr().err
    assert authority.issued(folder) == []


def test_a_weak_key_is_refused():
    with pytest.raises(CertificateError, match="RSA of 1024 bits; expected at least 2048"):
        made.check_key(rsa.generate_private_key(65537, 1024).public_key())


@pytest.mark.parametrize("name", ["_agg", "a b", "", "a" * 65, "a/b", "+"])
def test_a_name_that_is_no_device_id_is_refused(folder, name):
    assert ca("issue", name, "--folder", folder) == USAGE


def test_only_the_aggregator_has_its_name(folder, capsys):
    assert ca("issue", "_agg", "--role", "aggregator", "--folder", folder) == OK
    assert ca("issue", "north", "--role", "aggregator", "--folder", folder) == USAGE
    assert "expected the name _agg" in capsys.readouterr().err


def test_a_second_certificate_needs_to_be_asked_for(folder, capsys):
    ca("issue", "meter-1", "--folder", folder)
    before = (folder / "issued" / "meter-1.pem").read_bytes()
    assert ca("issue", "meter-1", "--folder", folder) == USAGE
    assert "add --renew" in capsys.readouterr().err
    assert (folder / "issued" / "meter-1.pem").read_bytes() == before
    assert ca("issue", "meter-1", "--folder", folder, "--renew") == OK
    assert (folder / "issued" / "meter-1.pem").read_bytes() != before


def test_revoking_lists_every_certificate_of_a_name(folder, capsys):
    ca("issue", "meter-1", "--folder", folder)
    ca("issue", "meter-1", "--folder", folder, "--renew")
    ca("issue", "meter-2", "--folder", folder)
    assert ca("revoke", "meter-1", "--folder", folder) == OK
    listed = reader.load_pem_x509_crl((folder / "revoked.pem").read_bytes())
    assert listed.is_signature_valid(certificate(folder / "ca.pem").public_key())
    serials = {f"{one.serial_number:x}" for one in listed}
    assert serials == {one.serial for one in authority.issued(folder) if one.name == "meter-1"}
    capsys.readouterr()
    assert ca("revoke", "meter-1", "--folder", folder) == USAGE
    assert "has no valid certificate of this authority; valid: meter-2" in capsys.readouterr().err
    ca("list", "--folder", folder, "--json")
    rows = json.loads(capsys.readouterr().out)["certificates"]
    assert [(one["name"], one["state"]) for one in rows] == [
        ("meter-1", "revoked"),
        ("meter-1", "revoked"),
        ("meter-2", "valid"),
    ]


def test_the_list_can_be_written_again_before_it_expires(folder):
    ca("issue", "meter-1", "--folder", folder)
    ca("revoke", "meter-1", "--folder", folder)
    assert ca("crl", "--folder", folder, "--days", "90") == OK
    listed = reader.load_pem_x509_crl((folder / "revoked.pem").read_bytes())
    assert len(listed) == 1
    left = listed.next_update_utc - datetime.now(UTC)
    assert timedelta(days=89) < left <= timedelta(days=90)


def test_no_certificate_outlives_the_authority():
    key = made.new_key()
    one = made.new_authority("short", key, NOW, timedelta(days=10))
    found = made.issue(one, "m", "device", key.public_key(), now=NOW, lifetime=timedelta(days=365))
    assert found.not_valid_after_utc == one.certificate.not_valid_after_utc
    late = NOW + timedelta(days=11)
    with pytest.raises(CertificateError, match="the authority's certificate expired"):
        made.issue(one, "m", "device", key.public_key(), now=late, lifetime=timedelta(days=1))


def test_an_authority_is_never_overwritten(folder, capsys):
    before = (folder / "ca.key").read_bytes()
    assert ca("init", folder) == USAGE
    assert "there is an authority here already" in capsys.readouterr().err
    assert (folder / "ca.key").read_bytes() == before


def test_a_key_with_a_passphrase_needs_it(tmp_path, capsys):
    word = tmp_path / "word"
    word.write_text("correct horse\n")
    place = tmp_path / "ca"
    assert ca("init", place, "--passphrase-file", word) == OK
    assert b"ENCRYPTED" in (place / "ca.key").read_bytes()
    assert ca("issue", "meter-1", "--folder", place) == USAGE
    assert "--passphrase-file" in capsys.readouterr().err
    assert ca("issue", "meter-1", "--folder", place, "--passphrase-file", word) == OK


def test_a_key_that_others_can_read_is_refused(folder, capsys):
    (folder / "ca.key").chmod(0o644)
    assert ca("issue", "meter-1", "--folder", folder) == USAGE
    assert "chmod 600" in capsys.readouterr().err


def test_a_folder_without_an_authority_is_named(tmp_path, capsys):
    for words in (("issue", "m"), ("revoke", "m"), ("crl",), ("list",)):
        assert ca(*words, "--folder", tmp_path / "none") == USAGE
        assert "gridfed-aggregator ca init" in capsys.readouterr().err


def test_a_record_of_before_the_first_release_is_refused(folder, capsys):
    (folder / "issued.jsonl").write_text("{}\n")
    assert ca("list", "--folder", folder) == RUNTIME
    assert "issued.jsonl: written before the first release" in capsys.readouterr().err


def test_a_record_of_another_program_is_refused(folder, capsys):
    (folder / "authority.sqlite").write_bytes(b"not a database" * 100)
    assert ca("list", "--folder", folder) == RUNTIME
    assert "authority.sqlite" in capsys.readouterr().err


@given(st.binary(max_size=200))
def test_any_request_is_refused_or_has_a_key(content):
    try:
        key = made.request_key(content)
    except CertificateError:
        return
    assert key is not None


@pytest.mark.slow
def test_what_was_issued_is_in_the_record_whenever_the_process_is_killed(folder):
    """A certificate without an entry could never be revoked."""
    code = (
        "import sys; from aggregator.commands.main import main\n"
        "for n in range(10000): main(['ca', 'issue', f'm{n}', '--folder', sys.argv[1]])"
    )
    for number in range(8):
        place = folder.parent / f"ca-{number}"
        assert ca("init", place) == OK
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(place)], stdout=subprocess.DEVNULL
        )
        while not (place / "issued" / "m2.pem").exists():
            assert process.poll() is None
            time.sleep(0.001 * (number + 1))
        process.send_signal(signal.SIGKILL)
        process.wait()
        known = {one.serial for one in authority.issued(place)}
        files = [certificate(one) for one in (place / "issued").glob("*.pem")]
        assert {f"{one.serial_number:x}" for one in files} <= known
        assert ca("issue", "after", "--folder", place) == OK
        assert ca("revoke", "m2", "--folder", place) == OK


def test_openssl_accepts_the_chain_of_both_ends(folder):
    """A TLS handshake in memory: the broker's certificate with a host name, the device's for clients."""
    ca("issue", "mqtt", "--role", "broker", "--host", "localhost", "--folder", folder)
    ca("issue", "meter-1", "--folder", folder)
    issued = folder / "issued"
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=folder / "ca.pem")
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_cert_chain(issued / "mqtt.pem", issued / "mqtt.key")
    client = ssl.create_default_context(cafile=folder / "ca.pem")
    client.load_cert_chain(issued / "meter-1.pem", issued / "meter-1.key")
    assert handshake(server, client) == "meter-1"
    ca("revoke", "meter-1", "--folder", folder)
    server.load_verify_locations(folder / "revoked.pem")
    server.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    with pytest.raises(ssl.SSLCertVerificationError, match="revoked"):
        handshake(server, client)


def handshake(server, client):
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(down, up, server_hostname="localhost"),
        server.wrap_bio(up, down, server_side=True),
    )
    for _ in range(6):
        for one in ends:
            try:
                one.do_handshake()
            except ssl.SSLWantReadError:
                continue
    subject = dict(pair[0] for pair in ends[1].getpeercert()["subject"])
    return subject["commonName"]
