"""`gridfed-edge enrol` over EST: against a foreign server, and after a kill at every step."""

from __future__ import annotations

import shutil
import signal
import ssl
import stat
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from edge_sdk.commands.main import main
from edge_sdk.config import Config
from edge_sdk.extensions.certificates.certificate_enrolment import Enrolment
from edge_sdk.extensions.certificates.certificate_files import CertificateFiles
from edge_sdk.extensions.certificates.certificate_request import (
    PROOF_PREFIX,
    CertificateAnswerError,
    certificate_request,
    fingerprint,
    identity_in,
    issued_for,
    new_tls_key,
)
from edge_sdk.extensions.certificates.section import ca_of
from edge_sdk.protocol.keys import kid_of, load_signing_key, verify
from edge_sdk.protocol.statements import enrolment_statement
from tests.aggregator.extensions.authority.est import made_authority, password_of, serving
from tests.edge_sdk.session.foreign_est import ForeignEst

CONFIG = """
id = "meter-1"
fleet = "north"
state = "state"
bundle = "load-week-1"
broker = { url = "mqtts://localhost", ca_file = "ca.pem", cert_file = "tls.pem", key_file = "tls.pem" }
keys = { device = "meter-1.key", root = "root.pub" }
privacy = { mechanism = { name = "none" } }
"""


@pytest.fixture
def device(tmp_path):
    place = tmp_path / "device"
    place.mkdir()
    (place / "meter.toml").write_text(CONFIG)
    return place


@pytest.fixture
def foreign(tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    place = tmp_path / "foreign"
    place.mkdir()
    with ForeignEst(place, "meter-1", "word") as server:
        yield server


def enrol(device, server, *words):
    return main(["enrol", str(device / "meter.toml"), "--est-url", server.url, *map(str, words)])


def loaded(device):
    """What a TLS library reads: the certificate fits its key."""
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(device / "tls.pem")
    return x509.load_pem_x509_certificate((device / "tls.pem").read_bytes())


def test_a_device_enrols_and_renews_at_a_foreign_server_with_a_path_label(device, foreign):
    pin = "sha256:" + fingerprint(foreign.ca.read_bytes())
    assert enrol(device, foreign, "--otp", "word", "--ca", pin) == 0
    first = loaded(device)
    assert first.subject.rfc4514_string() == "CN=meter-1"
    assert stat.S_IMODE((device / "tls.pem").stat().st_mode) == 0o600
    assert (device / "ca.pem").read_bytes().strip() == foreign.ca.read_bytes().strip()
    assert enrol(device, foreign, "--renew") == 0
    assert loaded(device).public_key() != first.public_key()
    assert (device / "tls.pem.previous").exists()  # until a broker has accepted the new one
    assert not (device / "tls.pem.next").exists()
    assert foreign.requests[0] == "/.well-known/est/site/cacerts"
    assert [one.rsplit("/")[-1] for one in foreign.requests if "enroll" in one] == [
        "simpleenroll",
        "simplereenroll",
    ]


@pytest.mark.parametrize("option", ["--otp", "--serial", "--ca", "--est-url"])
def test_a_value_cut_from_a_file_with_crlf_says_so_and_nothing_is_sent(
    device, foreign, capsys, option
):
    words = {"--otp": "word", "--ca": "ca.pem", "--serial": "meter-1", "--est-url": foreign.url}
    words[option] += "\r"
    assert enrol(device, foreign, *(one for pair in words.items() for one in pair)) == 2
    said = capsys.readouterr().err
    assert f"{option}: the value has a carriage return" in said
    assert "tr -d" in said
    assert not foreign.requests


def test_without_a_pin_or_with_a_foreign_one_nothing_is_sent(device, foreign, capsys):
    assert enrol(device, foreign, "--otp", "word") == 2
    assert "the server could be anybody's" in capsys.readouterr().err
    assert enrol(device, foreign, "--otp", "word", "--ca", "sha256:" + "00" * 32) == 1
    assert "another authority" in capsys.readouterr().err
    assert not [one for one in foreign.requests if "enroll" in one]
    assert not (device / "ca.pem").exists()
    assert not (device / "tls.pem").exists()


def test_a_lost_answer_is_asked_for_again_with_the_same_key(device, foreign):
    foreign.drop_answers = 1
    words = ("--otp", "word", "--ca", foreign.ca)
    assert enrol(device, foreign, *words) == 1
    pending = (device / "tls.pem.next").read_bytes()
    assert enrol(device, foreign, *words) == 0
    assert (device / "tls.pem").read_bytes().startswith(pending)


def test_our_own_server_enrols_with_the_root_key_and_again_after_a_lost_answer(
    tmp_path, device, capsys
):
    now = datetime.now(UTC)
    folder = made_authority(tmp_path / "ca", now)
    word = password_of(folder, "meter-1", until=now.replace(year=now.year + 1))
    members = []
    another = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
    root = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    with serving(folder, deliver=members.extend, root=lambda: root) as server:
        words = ("--otp", word, "--ca", folder / "ca.pem")
        assert enrol(device, server, *words) == 0
        kept = (device / "tls.pem").read_bytes()
        (device / "tls.pem").replace(device / "tls.pem.next")  # a kill before the last step
        assert enrol(device, server, *words) == 0
        assert (device / "tls.pem").read_bytes() == kept
        (device / "tls.pem").unlink()
        (device / "tls.pem.next").write_bytes(kept.partition(b"-----BEGIN CERT")[0])
        (device / "tls.pem.next").chmod(0o600)  # a kill before the answer was stored
        assert enrol(device, server, *words) == 0
        assert (device / "tls.pem").read_bytes() == kept
        assert enrol(device, server, "--renew") == 0
        assert "warning" not in capsys.readouterr().out
        (device / "root.pub").write_text(another)
        assert enrol(device, server, "--renew") == 0
        warned = capsys.readouterr().out
        other, its = (kid_of(bytes.fromhex(one)).hex() for one in (another, root))
        assert f"holds root key {other}, and the server's fleet has {its}" in warned
        (device / "root.pub").write_text(root)
    assert loaded(device).public_key() != x509.load_pem_x509_certificate(kept).public_key()
    assert (device / "root.pub").read_text().strip() == root
    (member,) = members
    assert member.identity == load_signing_key(device / "meter-1.key").public


def test_the_request_proves_the_identity_over_its_tls_key(device, foreign):
    assert enrol(device, foreign, "--otp", "word", "--ca", foreign.ca) == 0
    signer = load_signing_key(device / "meter-1.key")
    request = x509.load_der_x509_csr(certificate_request(new_tls_key(), "north", "meter-1", signer))
    (found,) = list(request.attributes)
    public, proof = identity_in(found.value)
    spki = request.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    assert public == signer.public
    assert verify(public, proof, enrolment_statement("north", "meter-1", public, request=spki))
    assert not verify(public, proof, enrolment_statement("south", "meter-1", public, request=spki))


@pytest.mark.parametrize(
    "value", [PROOF_PREFIX, PROOF_PREFIX + 127 * b"A", PROOF_PREFIX + 128 * b"!"]
)
def test_a_proof_of_another_form_is_refused(value):
    with pytest.raises(CertificateAnswerError, match="expected 96 or 97 bytes in base64url"):
        identity_in(value)


def test_a_certificate_of_another_key_or_name_is_not_stored(device, foreign):
    assert enrol(device, foreign, "--otp", "word", "--ca", foreign.ca) == 0
    content = (device / "tls.pem").read_bytes()
    key, _, rest = content.partition(b"-----BEGIN CERT")
    pem = b"-----BEGIN CERT" + rest
    assert issued_for(key, [pem], "meter-1").name == "meter-1"
    with pytest.raises(CertificateAnswerError, match="expected 'meter-2'"):
        issued_for(key, [pem], "meter-2")
    with pytest.raises(CertificateAnswerError, match="no certificate of this device's key"):
        issued_for(new_tls_key(), [pem], "meter-1")


STEPS = """
import os, signal, sys
from edge_sdk.extensions.certificates import certificate_files as module
from edge_sdk.commands.main import main
count, at = 0, int(sys.argv[1])
def dying(function):
    def call(*args, **more):
        global count
        count += 1
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)
        done = function(*args, **more)
        return done
    return call
module.write_atomically = dying(module.write_atomically)
module.Path.replace = dying(module.Path.replace)
code = main(["enrol", sys.argv[2], "--renew"])
print(count)
sys.exit(code)
"""


@pytest.mark.slow
def test_a_renewal_killed_at_any_step_leaves_a_usable_file_and_is_finished_later(device, foreign):
    with (device / "meter.toml").open("a") as file:
        file.write(f'[ca]\nurl = "{foreign.url}"\n')
    assert enrol(device, foreign, "--otp", "word", "--ca", foreign.ca) == 0
    killed = 0
    for at in range(1, 20):
        before = loaded(device).public_key()
        words = [sys.executable, "-c", STEPS, str(at), str(device / "meter.toml")]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        loaded(device)  # whatever happened, key and certificate fit
        if done.returncode == -signal.SIGKILL:
            killed += 1
        assert main(["enrol", str(device / "meter.toml"), "--renew"]) == 0
        assert loaded(device).public_key() != before
        assert not (device / "tls.pem.next").exists()
        CertificateFiles(device / "tls.pem").confirm()
        if done.returncode == 0:
            break
    assert killed >= 4


def test_present_and_previous_are_exchanged_when_no_broker_accepts_the_new_one(device, foreign):
    assert enrol(device, foreign, "--otp", "word", "--ca", foreign.ca) == 0
    first = (device / "tls.pem").read_bytes()
    files = CertificateFiles(device / "tls.pem")
    assert not files.exchange()
    assert enrol(device, foreign, "--renew") == 0
    second = (device / "tls.pem").read_bytes()
    assert files.exchange()
    assert (device / "tls.pem").read_bytes() == first
    assert files.previous.read_bytes() == second
    assert files.confirm()
    assert not files.confirm()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ('[ca]\nurl = "http://ca"', "not an address of HTTPS"),
        (
            '''[ca]
url = "https://ca"
[[participation]]
id = "m2"
bundle = "load-week-1"
cert_file = "a"
key_file = "a"''',
            "expected no [[participation]]",
        ),
    ],
)
def test_settings_that_cannot_renew_are_refused(device, more, says):
    (device / "meter.toml").write_text(CONFIG + more)
    with pytest.raises(Exception, match=says.replace("[", r"\[")):
        Config.load(device / "meter.toml", {})


def test_key_and_certificate_in_two_files_are_refused(device):
    text = (
        CONFIG.replace('key_file = "tls.pem"', 'key_file = "tls.key"') + '[ca]\nurl = "https://c"'
    )
    (device / "meter.toml").write_text(text)
    with pytest.raises(Exception, match="to be one file"):
        Config.load(device / "meter.toml", {})


def test_the_name_on_a_shared_broker_has_the_fleet(device):
    (device / "meter.toml").write_text(CONFIG + '[ca]\nurl = "https://ca"\nshared = true\n')
    config = Config.load(device / "meter.toml", {})
    assert Enrolment(config, ca_of(config).url, None).name == "north.meter-1"
