"""EST over HTTPS: strongSwan and openssl as strangers, and every refusal by its reason."""

from __future__ import annotations

import base64
import http.client
import shutil
import sqlite3
import ssl
import subprocess
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509 as reader

from aggregator.extensions.authority import certificates as made
from aggregator.extensions.authority import enrolment
from aggregator.extensions.authority import folder as authority
from aggregator.extensions.authority.certificate_reader import PresentedCertificate
from aggregator.extensions.authority.certificates import list_validity
from aggregator.extensions.authority.enrolment import EnrolmentPolicy
from aggregator.extensions.authority.est_service import EstService
from aggregator.extensions.authority.record import RecordError, opened
from aggregator.extensions.authority.record_entries import RefusedError
from aggregator.operations.signing_keys import RunSetupError
from edge_sdk.config import Config
from edge_sdk.extensions.certificates.certificate_enrolment import Enrolment
from edge_sdk.extensions.certificates.certificate_request import new_tls_key
from edge_sdk.extensions.certificates.est_client import (
    EstError,
    EstServerAddress,
    pinned_authority,
    request_certificate,
    root_public_key,
)
from edge_sdk.protocol import keys
from tests.aggregator.extensions.authority.est import Device, made_authority, password_of, serving

DAY = timedelta(days=1)
DEVICE = """
id = "meter-1"
fleet = "north"
bundle = "load-mlp"
state = "state"
broker = { url = "mqtts://localhost", ca_file = "ca.pem", cert_file = "tls.pem", key_file = "tls.pem" }
keys = { device = "meter.key", root = "root.pub" }
privacy = { mechanism = { name = "none" } }
"""


@pytest.fixture
def folder(tmp_path):
    return made_authority(tmp_path / "ca", datetime.now(UTC))


def listed(folder, serial, **more):
    return password_of(folder, serial, until=datetime.now(UTC) + DAY, **more)


def address(server, folder):
    return EstServerAddress(server.url, folder / "ca.pem")


def refusals(folder):
    with opened(folder) as record:
        return record.refusals()


def certificate(pem):
    return reader.load_pem_x509_certificate(pem)


@pytest.mark.parametrize("kind", ["ed25519", "p256"])
def test_a_device_is_enrolled_once_and_the_same_request_again_has_the_same_answer(folder, kind):
    word = listed(folder, "meter-1", labels="region=north")
    device = Device("meter-1", kind=kind)
    delivered = []
    with serving(folder, deliver=delivered.extend) as server:
        where = address(server, folder)
        how = {"is_renewal": False, "user": "meter-1", "password": word}
        (first,) = request_certificate(where, device.request(), **how)
        (again,) = request_certificate(where, device.request(), **how)
        assert again == first
        with pytest.raises(EstError, match="used twice"):
            request_certificate(where, Device("meter-1").request(), **how)
    certificate(first).verify_directly_issued_by(
        reader.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    )
    (one,) = delivered
    assert (one.name, one.identity, one.labels) == (
        "meter-1",
        device.identity.public,
        "region=north",
    )
    assert refusals(folder) == {"used twice": 1}
    assert [one.name for one in authority.issued(folder) if one.role == "device"] == ["meter-1"]


def test_a_password_is_cut_from_its_file_without_a_line_end(folder, tmp_path):
    from aggregator.commands.main import main  # noqa: PLC0415

    (tmp_path / "serials.csv").write_text("serial\r\nmeter-1\r\n")  # of another system
    words = ("ca", "passwords", str(tmp_path / "serials.csv"), "--folder", str(folder))
    assert main([*words, "--out", str(tmp_path / "passwords.csv")]) == 0
    head, row, end = (tmp_path / "passwords.csv").read_bytes().split(b"\n")
    assert (head, row.split(b",")[:2], end) == (b"serial,id,password", [b"meter-1"] * 2, b"")


def test_only_salted_digests_of_passwords_are_stored(folder):
    words = [listed(folder, f"meter-{n}") for n in range(3)]
    stored = (folder / "authority.sqlite").read_bytes()
    wal = folder / "authority.sqlite-wal"
    stored += wal.read_bytes() if wal.exists() else b""
    assert not [word for word in words if word.encode() in stored]
    assert len(set(words)) == 3


@pytest.mark.parametrize(
    ("serial", "word", "name", "reason", "status"),
    [
        ("meter-9", "right", "meter-9", "unlisted serial", 401),
        ("meter-1", "wrong", "meter-1", "wrong password", 401),
        ("meter-1", "right", "meter-2", "foreign common name", 403),
        ("", "", "meter-1", "no credentials", 401),
    ],
)
def test_a_foreign_request_is_refused_by_reason_and_counted(  # noqa: PLR0917 - one column each
    folder, serial, word, name, reason, status
):
    right = listed(folder, "meter-1")
    with serving(folder) as server:
        with pytest.raises(EstError, match=reason) as caught:
            request_certificate(
                address(server, folder),
                Device(name).request(),
                is_renewal=False,
                user=serial,
                password=right if word == "right" else word,
            )
        assert caught.value.status == status
    assert refusals(folder) == {reason: 1}


def test_an_identity_is_proved_and_is_one_device(folder):
    words = {n: listed(folder, f"meter-{n}") for n in (1, 2, 3)}
    first = Device("meter-1")

    def enrol(number, der):
        return request_certificate(
            where, der, is_renewal=False, user=f"meter-{number}", password=words[number]
        )

    with serving(folder) as server:
        where = address(server, folder)
        enrol(1, first.request())
        second = Device("meter-2")
        second.identity = first.identity
        with pytest.raises(EstError, match="identity in use"):
            enrol(2, second.request())
        with pytest.raises(EstError, match="identity not proved"):  # proof for another fleet
            enrol(3, Device("meter-3", fleet="south").request())
    assert refusals(folder) == {"identity in use": 1, "identity not proved": 1}


def test_a_certificate_of_a_forged_authority_ends_the_handshake_and_is_counted(folder, tmp_path):
    forged = made_authority(tmp_path / "forged", datetime.now(UTC))
    files = authority.issue(forged, "meter-1", "device", datetime.now(UTC), DAY)
    both = tmp_path / "both.pem"
    both.write_bytes(files[0].read_bytes() + files[1].read_bytes())
    with serving(folder) as server:
        with pytest.raises(EstError):
            request_certificate(
                address(server, folder),
                Device("meter-1").request(),
                is_renewal=True,
                certificate=both,
            )
        with pytest.raises(EstError, match="certificate verify failed"):  # and the other way
            request_certificate(address(server, forged), b"", is_renewal=False)
    assert refusals(folder) == {"forged authority": 1}


def renewing(folder, name="meter-1"):
    """Enrol a device at the present time; return it, its certificate and the rules."""
    word, device = listed(folder, name), Device(name)
    with serving(folder) as server:
        (pem,) = request_certificate(
            address(server, folder), device.request(), is_renewal=False, user=name, password=word
        )
    return device, pem


def at(days):
    now = datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
    return lambda: now


def ask(folder, device, days, *, key=None, shown=None):
    """Renew by the record alone, at another time than the machine's."""
    with authority.opened_authority(folder) as (signer, record):
        asked = enrolment.EnrolmentAuthority(record, signer, EnrolmentPolicy("north"))
        der = device.request(key=key or new_tls_key())
        return asked.renew(der, shown or enrolment.Credentials(), at(days)())


def test_a_member_renews_with_a_new_key_by_its_identity_until_the_grace_is_over(folder):
    device, pem = renewing(folder)
    renewed = made.certificate_of(ask(folder, device, 20))
    assert renewed.public_key() != certificate(pem).public_key()
    assert ask(folder, device, 50 + 179)  # slept half a year, but within the grace
    with pytest.raises(RefusedError, match="expired past grace") as caught:
        ask(folder, device, 50 + 179 + 30 + 181)
    assert caught.value.is_pending
    with opened(folder) as record:
        assert [one.name for one in record.members() if one.pending] == ["meter-1"]
        assert not enrolment.approve(record, "meter-2", at(500)())
        assert enrolment.approve(record, "meter-1", at(500)())
    assert ask(folder, device, 500)
    with opened(folder) as record:
        assert not [one for one in record.members() if one.pending or one.approved]


def test_a_stolen_tls_key_renews_nothing_without_the_identity_key(folder):
    device, _ = renewing(folder)
    thief = Device("meter-1")
    with pytest.raises(RefusedError, match="foreign identity"):
        ask(folder, thief, 20)
    held = PresentedCertificate(authority.issued(folder)[-1].serial, "meter-1", "test", at(9)())
    with pytest.raises(RefusedError, match="foreign identity"):
        ask(folder, thief, 20, shown=enrolment.Credentials(certificate=held))
    assert ask(folder, device, 20)


def test_a_revoked_member_neither_renews_nor_enrols_without_a_new_password(folder):
    word, device = listed(folder, "meter-1"), Device("meter-1")
    with serving(folder) as server:
        where = address(server, folder)
        how = {"is_renewal": False, "user": "meter-1"}
        request_certificate(where, device.request(), password=word, **how)
        authority.revoke(folder, "meter-1", datetime.now(UTC), DAY)
        with pytest.raises(EstError, match="used twice"):
            request_certificate(where, device.request(), password=word, **how)
        with pytest.raises(EstError, match="revoked"):
            request_certificate(where, device.request(), is_renewal=True)
        again = listed(folder, "meter-1")
        assert request_certificate(where, Device("meter-1").request(), password=again, **how)
    assert refusals(folder) == {"used twice": 1, "revoked": 1}


def test_the_authority_is_pinned_by_its_digest(folder):
    digest = made.fingerprint_of(authority.load_folder(folder).certificate)
    roots = iter(["ab" * 32, "cd" * 32, RunSetupError("root.pub was not signed")])

    def root():
        found = next(roots)
        if isinstance(found, Exception):
            raise found
        return found

    with serving(folder, root=root) as server:
        where = address(server, folder)
        assert certificate(pinned_authority(where, digest.upper()))
        with pytest.raises(EstError, match="another authority"):
            pinned_authority(where, "00" * 32)
        assert root_public_key(where) == "ab" * 32
        assert root_public_key(where) == "cd" * 32, "the state folder was made anew"
        with pytest.raises(EstError, match="root key cannot be read"):
            root_public_key(where)


def test_a_server_starts_only_with_the_root_of_the_aggregators_state(workplace, capsys):
    from aggregator.commands.main import main  # noqa: PLC0415

    config = workplace()
    assert main(["init", str(config)]) == 0
    serve = ["ca", "serve", "--config", str(config), "--folder", str(config.parent / "none")]
    root = config.parent / "state" / "root.pub"
    capsys.readouterr()
    for is_there, says in ((True, "was not signed by root.pub"), (False, "root.pub: cannot read")):
        root.unlink()
        if is_there:
            keys.save_public(root, keys.from_seed(bytes(32)).public)
        assert main(serve) == 2
        said = capsys.readouterr().err
        assert says in said
        assert "gridfed-aggregator" in said.partition("hint:")[2]


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"Content-Length": "99999999"}, b""),
        ({"Content-Length": "-1"}, b""),
        ({"Content-Length": "²"}, b""),
        ({}, b"!" * 40),
        ({}, base64.b64encode(b"no request")),
        ({"Authorization": "Basic !!!"}, base64.b64encode(b"x")),
    ],
)
def test_malformed_requests_are_refused(folder, headers, body):
    with serving(folder) as server:
        context = ssl.create_default_context(cafile=folder / "ca.pem")
        link = http.client.HTTPSConnection(
            "localhost", server.server_address[1], context=context, timeout=20
        )
        link.putrequest("POST", "/.well-known/est/simpleenroll")
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            link.putheader(name, value.encode())
        link.endheaders(body)
        assert link.getresponse().status == 400
        link.close()
    assert refusals(folder) == {"bad request": 1}


def test_strongswan_enrols_and_renews(folder, tmp_path):
    """A stranger's client: it proves no identity, so it is a member by its certificate alone."""
    if shutil.which("pki") is None:
        pytest.skip("strongswan-pki is not installed")
    known = subprocess.run(["pki", "--help"], capture_output=True, text=True, check=False)
    if "--est" not in known.stdout + known.stderr:
        pytest.skip("this release of pki has no --est")

    def pki(*words, data=None):
        return subprocess.run(
            ["pki", *map(str, words)], input=data, capture_output=True, check=True
        ).stdout

    def key_and_request(name):
        key = tmp_path / f"{name}.key"
        key.write_bytes(pki("--gen", "--type", "ecdsa", "--size", "256", "--outform", "pem"))
        words = ("--req", "--type", "ecdsa", "--in", key, "--dn", "CN=swan-1", "--outform", "pem")
        (tmp_path / f"{name}.req").write_bytes(pki(*words))
        return key, tmp_path / f"{name}.req"

    word = listed(folder, "swan-1")
    with serving(folder) as server:
        how = ("--est", "--url", server.url, "--cacert", folder / "ca.pem", "--outform", "pem")
        key, request = key_and_request("first")
        first = pki(*how, "--userpass", f"swan-1:{word}", "--in", request)
        (tmp_path / "first.pem").write_bytes(first)
        _, second = key_and_request("second")
        renewed = pki(*how, "--cert", tmp_path / "first.pem", "--key", key, "--in", second)
        authorities = pki("--estca", "--url", server.url, "--cacert", folder / "ca.pem",
                          "--caout", tmp_path / "caout", "--outform", "pem")  # fmt: skip
    assert authorities is not None
    assert certificate(first).subject.rfc4514_string() == "CN=swan-1"
    assert certificate(renewed).public_key() != certificate(first).public_key()
    assert refusals(folder) == {}


def test_openssl_reads_the_answer_and_curl_is_a_client(folder, tmp_path):
    if shutil.which("curl") is None or shutil.which("openssl") is None:
        pytest.skip("curl or openssl is not installed")
    word = listed(folder, "meter-1")
    key, request = tmp_path / "k.pem", tmp_path / "r.der"
    subprocess.run(
        ["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
         "-keyout", key, "-subj", "/CN=meter-1", "-outform", "DER", "-out", request],
        check=True, capture_output=True,
    )  # fmt: skip
    (tmp_path / "r.b64").write_bytes(base64.encodebytes(request.read_bytes()))
    with serving(folder) as server:
        answer = subprocess.run(
            ["curl", "-sS", "--fail", "--cacert", folder / "ca.pem", "-u", f"meter-1:{word}",
             "-H", "Content-Type: application/pkcs10", "--data-binary", f"@{tmp_path / 'r.b64'}",
             f"{server.url}/.well-known/est/simpleenroll"],
            check=True, capture_output=True,
        ).stdout  # fmt: skip
    (tmp_path / "a.der").write_bytes(base64.b64decode(answer))
    shown = subprocess.run(
        ["openssl", "pkcs7", "-inform", "DER", "-in", tmp_path / "a.der", "-print_certs"],
        check=True, capture_output=True,
    ).stdout  # fmt: skip
    assert b"CN = meter-1" in shown
    (tmp_path / "c.pem").write_bytes(shown[shown.index(b"-----BEGIN") :])
    verified = subprocess.run(
        ["openssl", "verify", "-purpose", "sslclient", "-CAfile", folder / "ca.pem",
         tmp_path / "c.pem"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert "OK" in verified


def test_a_member_replaces_its_identity_by_a_signature_of_the_former_one(folder):
    words = {n: listed(folder, f"meter-{n}", labels="region=north") for n in (1, 2)}
    devices = {n: Device(f"meter-{n}") for n in words}
    delivered = []
    with serving(folder, deliver=delivered.extend) as server:
        where = address(server, folder)
        for n, device in devices.items():
            how = {"is_renewal": False, "user": device.name, "password": words[n]}
            request_certificate(where, device.request(), **how)
        server.service.turn()
        former, device = devices[1].identity, Device("meter-1")
        renew = {"is_renewal": True}
        for signer, reason in ((None, "foreign identity"), (device.identity, "foreign identity")):
            with pytest.raises(EstError, match=reason):
                request_certificate(where, device.request(former=signer), **renew)
        taken = Device("meter-1")
        taken.identity = devices[2].identity
        with pytest.raises(EstError, match="identity in use"):
            request_certificate(where, taken.request(former=former), **renew)
        (first,) = request_certificate(where, device.request(former=former), **renew)
        (again,) = request_certificate(where, device.request(former=former), **renew)
        assert again == first  # its answer was lost
        with pytest.raises(
            EstError, match="foreign identity"
        ):  # the former one renews nothing more
            request_certificate(where, devices[1].request(key=new_tls_key()), **renew)
        request_certificate(where, device.request(key=new_tls_key()), **renew)
    *_, last = delivered
    assert (last.name, last.identity, last.former) == (
        "meter-1",
        device.identity.public,
        former.public,
    )
    assert refusals(folder) == {"foreign identity": 3, "identity in use": 1}
    with opened(folder) as record:
        acts = [one.act for one in record.acts() if one.subject == "meter-1"]
    assert acts.count("replace identity") <= 1  # delivered, or waiting


def test_two_replacements_before_a_delivery_name_the_key_that_the_aggregator_knows(folder):
    word = listed(folder, "meter-1")
    first, second, third = (Device("meter-1") for _ in range(3))
    with opened(folder) as record:
        how = EnrolmentPolicy("north")
        ca = enrolment.EnrolmentAuthority(record, authority.load_folder(folder), how)
        now = datetime.now(UTC).replace(microsecond=0)
        ca.enrol(first.request(), enrolment.Credentials("meter-1", word), now)
        record.mark_delivered(record.members())
        for former, device in ((first, second), (second, third)):
            ca.renew(device.request(former=former.identity), enrolment.Credentials(), now)
        (member,) = record.undelivered()
        assert (member.identity, member.former) == (third.identity.public, first.identity.public)
        record.mark_delivered([member])
        assert record.undelivered() == []


def test_a_record_of_an_earlier_schema_is_refused(folder):
    with sqlite3.connect(folder / "authority.sqlite") as db:
        db.execute("PRAGMA user_version = 2")
    with pytest.raises(RecordError, match="written before the first release"), opened(folder):
        pass


def test_a_renewal_reaches_a_server_whose_dates_a_device_without_the_time_cannot_judge(folder):
    word = listed(folder, "meter-1")
    device = Device("meter-1")
    shift = timedelta(days=200)
    later = lambda: datetime.now(UTC).replace(microsecond=0) + shift  # noqa: E731 - a clock
    with serving(
        folder, clock=later, policy=EnrolmentPolicy("north", timedelta(days=400))
    ) as server:
        here = address(server, folder)
        with pytest.raises(EstError, match="not yet valid"):
            request_certificate(here, device.request(), is_renewal=True)
        unknown = replace(here, earliest=time.time() - 86_400.0)
        with pytest.raises(EstError, match="not a member"):
            request_certificate(unknown, device.request(), is_renewal=True)
        over = replace(here, earliest=time.time() + 300 * 86_400.0)
        with pytest.raises(EstError, match="this machine's clock is wrong"):
            request_certificate(over, device.request(), is_renewal=True)
        known = replace(here, signed_time=time.time() + 200 * 86_400.0)
        with pytest.raises(EstError, match="password expired"):
            request_certificate(
                known, device.request(), is_renewal=False, user="meter-1", password=word
            )


def test_a_first_enrolment_checks_the_dates_whatever_time_is_known(tmp_path, folder):
    config = tmp_path / "meter.toml"
    config.write_text(DEVICE)
    shutil.copy(folder / "ca.pem", tmp_path / "ca.pem")
    later = lambda: datetime.now(UTC).replace(microsecond=0) + 200 * DAY  # noqa: E731 - a clock
    with serving(folder, clock=later) as server:
        key = Device("meter-1").identity
        enrolment_ = Enrolment(Config.load(config), server.url, key, earliest=0.0)
        with pytest.raises(EstError, match="not yet valid"):
            enrolment_.request(is_renewal=False, password="word")
        with pytest.raises(EstError, match="not a member"):
            enrolment_.request(is_renewal=True)


def test_the_list_of_revoked_certificates_is_renewed_in_time_and_the_broker_reads_it(folder):
    now = datetime.now(UTC).replace(microsecond=0)
    moments, reloads = [now], []

    def failing_once():
        reloads.append(moments[0])
        if len(reloads) == 1:
            raise RuntimeError("the broker is away")

    service = EstService(
        folder, EnrolmentPolicy("north"), clock=lambda: moments[0], reload_broker=failing_once
    )
    try:
        before = (folder / "revoked.pem").read_bytes()
        service.renew_list()
        moments[0] = now + 14 * DAY
        service.renew_list()
        assert (folder / "revoked.pem").read_bytes() == before
        moments[0] = now + 16 * DAY
        with pytest.raises(RuntimeError, match="away"):
            service.renew_list()
        service.renew_list()  # the list is new; the broker has not read it yet
        service.renew_list()
        assert len(reloads) == 2
    finally:
        service.close()
    begin, end = list_validity((folder / "revoked.pem").read_bytes())
    assert end == moments[0] + 30 * DAY
    assert begin == moments[0] - made.SKEW


@pytest.mark.parametrize("content", [None, b"damaged"])
def test_a_list_that_is_missing_or_damaged_is_written_again(folder, content):
    file, now = folder / "revoked.pem", datetime.now(UTC)
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    assert authority.renew_list_in_time(folder, now)
    assert not authority.renew_list_in_time(folder, now)


def test_a_list_of_the_operator_s_own_validity_keeps_it(folder):
    now = datetime.now(UTC).replace(microsecond=0)
    authority.renew_list(folder, now, 4 * DAY)
    assert not authority.renew_list_in_time(folder, now + DAY)
    assert authority.renew_list_in_time(folder, now + 3 * DAY)
    assert list_validity((folder / "revoked.pem").read_bytes())[1] == now + 7 * DAY
