"""The authority is replaced with an overlap; a kill at any step leaves one that goes on."""

from __future__ import annotations

import signal
import ssl
import time
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509 as reader
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from aggregator.commands.main import main
from aggregator.extensions.authority import authority_replacement, certificates
from aggregator.extensions.authority import folder as authority
from aggregator.extensions.authority.certificate_reader import (
    certificates_in,
    common_name,
    issuer_id,
)
from aggregator.extensions.authority.folder import NEXT
from aggregator.extensions.authority.token_key import TokenKey
from edge_sdk.errors import OK, TEMPORARY, USAGE
from edge_sdk.extensions.certificates.est_client import (
    EstError,
    EstServerAddress,
    pinned_authority,
    request_certificate,
)
from edge_sdk.extensions.certificates.followed_authorities import checked_authorities
from tests.aggregator.extensions.authority.est import Device, password_of, serving
from tests.aggregator.extensions.key_rotation.test_key_rotation import Fleet, killed_at
from tests.aggregator.operations.test_key_store import made
from tests.pkcs11_tokens import opened

DAY = timedelta(days=1)


def ca(*words):
    return main(["ca", *map(str, words)])


class Place:
    """A fleet with an authority; its commands run without a daemon."""

    def __init__(self, path, more=""):
        self.ca = path.parent / "ca"
        assert ca("init", self.ca, "--title", "North grid") == OK
        path.write_text(f'{path.read_text()}\n[ca]\nfolder = "ca"\n{more}')
        self.fleet, self.path = Fleet(path), path

    def rotate(self, *words):
        return self.fleet.rotate("ca", *words)

    def trusted(self):
        return certificates_in((self.ca / "ca.pem").read_bytes())

    def names(self):
        return [common_name(one) for one in self.trusted()]

    def announced(self):
        """Return the names of the authorities that the root has announced, as a device reads them."""
        listed = self.fleet.listen().ca
        assert len(checked_authorities(listed)) == len(listed)
        return [common_name(reader.load_der_x509_certificate(der)) for der in listed]

    def present(self):
        return common_name(authority.load_folder(self.ca).certificate)

    def issue(self, name, *words):
        """Issue a certificate, and return the name of the authority that has signed it."""
        assert ca("issue", name, *words, "--config", self.path) == OK
        made = (self.ca / "issued" / f"{name}.pem").read_bytes()
        (found,) = certificates_in(made)
        return next(common_name(one) for one in self.trusted() if issuer_id(found) == key_of(one))


def key_of(one):
    return reader.SubjectKeyIdentifier.from_public_key(one.public_key()).digest.hex()


@pytest.fixture
def place(workplace):
    return lambda more="": Place(workplace(), more)


def test_both_authorities_are_trusted_and_announced_until_the_end(place, capsys):
    here = place()
    assert here.announced() == []
    assert here.issue("meter-1") == "North grid"
    assert here.rotate() == OK
    said = capsys.readouterr().out
    assert "'North grid' is being replaced by 'North grid 2', sha256:" in said
    assert "restart the broker before the daemon" in said
    assert here.names() == ["North grid", "North grid 2"]
    assert here.announced() == ["North grid 2", "North grid"]
    assert here.fleet.starts() is True
    assert here.rotate("--finish") == USAGE
    assert (
        "these devices have a certificate of the former authority: meter-1"
        in capsys.readouterr().err
    )
    assert here.issue("meter-1", "--renew") == "North grid 2"
    assert here.rotate("--finish") == OK
    assert here.names() == [here.present()] == here.announced() == ["North grid 2"]
    assert not (here.ca / NEXT).exists()
    assert here.rotate("--finish") == USAGE
    assert "no replacement waits" in capsys.readouterr().err
    assert here.issue("meter-2") == "North grid 2"
    assert here.rotate() == OK  # and the next one
    assert here.announced() == ["North grid 3", "North grid 2"]


def test_every_further_list_of_keys_names_the_authorities(place):
    here = place()
    assert here.rotate() == OK
    both = here.announced()
    for words in (("aggregator",), ("root",)):
        assert here.fleet.rotate(*words) == OK
        assert here.announced() == both


def test_the_command_given_again_keeps_the_next_authority(place):
    here = place()
    assert here.rotate() == OK
    names, announced = here.trusted(), here.fleet.listen().ca
    assert here.rotate() == OK
    assert (here.trusted(), here.fleet.listen().ca) == (names, announced)


def test_a_broker_gets_the_next_authority_only_when_no_device_waits(place, capsys):
    """Until then a device may not know it yet, and would refuse the broker."""
    here = place()
    host = ("--role", "broker", "--host", "localhost", "--renew")
    assert here.issue("broker", *host) == "North grid"
    assert here.issue("_agg", "--role", "aggregator") == "North grid"
    assert here.issue("meter-1") == "North grid"
    assert here.rotate() == OK
    assert here.issue("broker", *host) == "North grid"
    assert here.issue("meter-1", "--renew") == "North grid 2"
    assert here.rotate("--finish") == USAGE
    said = capsys.readouterr().err
    assert "_agg, broker: the certificate is of the former authority" in said.replace(
        "broker, _agg", "_agg, broker"
    )
    assert "ca issue broker --role broker --host HOST --renew" in said
    assert here.issue("broker", *host) == "North grid 2"
    assert here.issue("_agg", "--role", "aggregator", "--renew") == "North grid 2"
    assert here.rotate("--finish") == OK


def test_revoked_devices_and_those_past_the_grace_do_not_wait(place):
    here = place("grace_days = 1.0\n")
    now = datetime.now(UTC).replace(microsecond=0)
    with serving(here.ca, policy=None) as server:
        where = EstServerAddress(server.url, here.ca / "ca.pem")
        for name in ("meter-1", "meter-2"):
            word = password_of(here.ca, name, until=now + DAY)
            der = Device(name).request()
            request_certificate(where, der, is_renewal=False, user=name, password=word)
    assert here.issue("meter-3") == "North grid"
    assert here.rotate() == OK
    key = authority_replacement.next_authority(here.ca).key_id
    with authority.opened(here.ca) as record:
        waiting = authority.devices_of_former
        assert waiting(record, key, now, DAY) == ["meter-1", "meter-2", "meter-3"]
        late = now + 30.5 * DAY  # members expired half a day ago
        assert waiting(record, key, late, DAY) == ["meter-1", "meter-2", "meter-3"]
        assert waiting(record, key, now + 32 * DAY, DAY) == ["meter-3"]  # valid for a year
        assert waiting(record, key, now + 366 * DAY, DAY) == []
    for name in ("meter-1", "meter-2", "meter-3"):
        assert ca("revoke", name, "--folder", here.ca) == OK
    assert here.rotate("--finish") == OK


def test_the_broker_has_lists_of_revoked_certificates_of_both(place):
    here = place()
    here.issue("meter-1")
    assert here.rotate() == OK
    assert ca("revoke", "meter-1", "--folder", here.ca) == OK
    blocks = (here.ca / "revoked.pem").read_bytes().split(b"-----END X509 CRL-----\n")[:-1]
    lists = [reader.load_pem_x509_crl(one + b"-----END X509 CRL-----\n") for one in blocks]
    assert [len(one) for one in lists] == [1, 1]
    for one, by in zip(lists, here.trusted(), strict=True):
        assert one.is_signature_valid(by.public_key())


def test_a_passphrase_protects_the_next_key_too(workplace, tmp_path, capsys):
    word = tmp_path / "passphrase"
    word.write_text("correct horse\n")
    path = workplace()
    assert ca("init", path.parent / "ca", "--passphrase-file", word) == OK
    path.write_text(f'{path.read_text()}\n[ca]\nfolder = "ca"\npassphrase_file = "{word}"\n')
    fleet = Fleet(path)
    assert fleet.rotate("ca") == OK
    content = (path.parent / "ca" / NEXT).read_bytes()
    assert b"ENCRYPTED PRIVATE KEY" in content
    assert fleet.rotate("ca", "--finish") == OK
    assert b"ENCRYPTED PRIVATE KEY" in (path.parent / "ca" / "ca.key").read_bytes()
    word.write_text("wrong\n")
    assert fleet.rotate("ca") == USAGE
    assert "--passphrase-file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--finish",), "no replacement waits"),
        (("--root-key", "absent.key"), "file not found"),
    ],
)
def test_a_replacement_that_cannot_succeed_changes_nothing(place, capsys, words, says):
    here = place()
    assert here.rotate(*words) == USAGE
    assert says in capsys.readouterr().err
    assert here.names() == ["North grid"]
    assert not (here.ca / NEXT).exists()


def test_an_authority_elsewhere_is_not_replaced_here(workplace, capsys):
    fleet = Fleet(workplace())
    assert fleet.rotate("ca") == USAGE
    assert "ca.folder: missing" in capsys.readouterr().err


def test_the_steps_are_in_the_audit_log_and_in_the_status(place, capsys):
    here = place()
    here.issue("meter-1")
    assert here.rotate("--why", "it ends in March") == OK
    assert ca("status", "--config", here.path) == OK
    said = capsys.readouterr().out
    assert "the authority is being replaced by 'North grid 2'" in said
    assert "devices with a certificate of the former: meter-1" in said
    here.issue("meter-1", "--renew")
    assert here.rotate("--finish") == OK
    capsys.readouterr()
    assert main(["audit-log", "show", "--config", str(here.path)]) == OK
    out = capsys.readouterr().out
    assert "it ends in March" in out
    assert out.count("rotate") >= 2


# --- enrolment over EST -----------------------------------------------------------------------


def server_issuer(server):
    host, port = server.server_address[:2]
    return issuer_id(certificates_in(ssl.get_server_certificate((host, port)).encode())[0])


def issuer(here, pem):
    (found,) = certificates_in(pem)
    return next(common_name(one) for one in here.trusted() if key_of(one) == issuer_id(found))


def test_the_server_issues_by_the_next_authority_to_those_that_trust_it(place):
    here = place()
    now = datetime.now(UTC)
    words = {name: password_of(here.ca, name, until=now + DAY) for name in ("a", "b", "router")}
    with serving(here.ca) as server:
        where = EstServerAddress(server.url, here.ca / "ca.pem")

        def enrol(name, device, **more):
            der = device.request()
            (found,) = request_certificate(
                where, der, is_renewal=False, user=name, password=words[name], **more
            )
            return issuer(here, found)

        def renew(device, **more):
            (found,) = request_certificate(where, device.request(), is_renewal=True, **more)
            return issuer(here, found)

        a, b = Device("a"), Device("b")
        assert enrol("a", a) == "North grid"
        assert here.rotate() == OK  # beside the running server
        digests = [certificates.fingerprint_of(one) for one in here.trusted()]
        for digest in digests:
            assert pinned_authority(where, digest)  # /cacerts has both
        assert enrol("b", b) == "North grid"  # it trusts the former one alone
        for device in (a, b):
            device.tls = Device("").tls
            assert renew(device, trusted=digests[:1]) == "North grid"
            device.tls = Device("").tls
            assert renew(device, trusted=digests) == "North grid 2"
        assert here.rotate("--finish") == OK
        a.tls = Device("").tls
        end = time.monotonic() + 60
        while (shown := server_issuer(server)) != authority.load_folder(here.ca).key_id:
            assert time.monotonic() < end, shown  # it takes its next certificate in its loop
            time.sleep(0.05)
        assert renew(a) == "North grid 2"
        router = Device("router")
        assert enrol("router", router) == "North grid 2"


# --- kill -9 ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_kill_at_any_step_leaves_an_authority_that_issues_and_the_command_completes_it(
    place, capsys
):
    here, at, killed = place(), 1, 0
    here.issue("meter-1")
    ended = None
    while ended is None or ended.returncode != OK:
        before = here.present()
        for words in ((), ("--finish",)):
            ended = killed_at(here.fleet, at, "ca", *words)
            assert ended.returncode in (OK, -signal.SIGKILL), ended.stderr.decode()
            killed += ended.returncode != OK
            assert here.fleet.starts() is True
            announced = here.announced()
            assert set(announced) <= set(here.names())  # devices never trust less than the broker
            here.issue("meter-1", "--renew")
            again = here.rotate(*words)
            if again != OK:  # it was complete: nothing was left to do
                assert "no replacement waits" in capsys.readouterr().err
            here.announced()
            here.issue("meter-1", "--renew")
        assert here.names() == [here.present()] == here.announced()
        assert here.present() != before
        at += 3  # every third change: a process takes a second to start
    assert killed > 6


def test_a_finish_that_was_cut_off_is_not_begun_again(place, capsys, monkeypatch):
    here = place()
    assert here.rotate() == OK

    def cut(*_args, **_more):
        raise KeyboardInterrupt

    made = authority_replacement.announce_alone(here.ca)
    monkeypatch.setattr(authority_replacement, "announce_alone", lambda *_: made)
    monkeypatch.setattr(authority_replacement, "_write", cut)
    assert here.rotate("--finish") == 130
    monkeypatch.undo()
    assert here.present() == "North grid 2"
    assert here.rotate() == USAGE
    assert "the former authority is being taken out" in capsys.readouterr().err
    assert here.rotate("--finish") == OK
    assert here.names() == ["North grid 2"]


# --- warnings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("age", "is_near"), [(340, True), (250, False)])
def test_an_authority_that_expires_soon_is_reported_with_the_command(
    workplace, tmp_path, capsys, age, is_near
):
    path = workplace()
    folder = path.parent / "ca"
    authority.create(folder, "North grid", datetime.now(UTC) - age * DAY, 365 * DAY)
    path.write_text(f'{path.read_text()}\n[ca]\nfolder = "ca"\n')
    assert main(["init", str(path)]) == OK
    conf = tmp_path / "mosquitto.conf"
    conf.write_text(f"listener 8883\ncafile {folder / 'ca.pem'}\nrequire_certificate true\n")
    command = "gridfed-aggregator rotate ca"
    capsys.readouterr()
    assert main(["check", str(path)]) == OK
    shown = capsys.readouterr().out
    assert (f"replace the authority: {command} --config {path}" in shown) is is_near
    main(["broker", "check", "--file", str(conf)])
    said = capsys.readouterr()
    assert (f"replace the authority: {command}" in said.out + said.err) is is_near
    if is_near:
        assert main(["rotate", "ca", "--config", str(path)]) == OK
        capsys.readouterr()
        assert main(["check", str(path)]) == OK
        assert f"{command} --finish --config {path}" in capsys.readouterr().out


# --- keys in tokens ---------------------------------------------------------------------------


@pytest.fixture
def softhsm(tmp_path):
    with opened("softhsm", tmp_path / "token") as token:
        yield token


def test_the_keys_of_both_authorities_may_be_in_a_token(softhsm, workplace, capsys):
    path = workplace()
    folder = path.parent / "ca"
    first, _ = made(softhsm, "first", "p256")
    second, _ = made(softhsm, "second", "p256")
    assert ca("init", folder, "--key", first, "--title", "North grid") == OK
    assert (folder / "ca.key").read_text() == f"{first}\n"
    path.write_text(f'{path.read_text()}\n[ca]\nfolder = "ca"\n')
    fleet = Fleet(path)
    now = datetime.now(UTC)
    with serving(folder) as server:
        where = EstServerAddress(server.url, folder / "ca.pem")
        word = password_of(folder, "meter-1", until=now + DAY)
        device = Device("meter-1")
        how = {"is_renewal": False, "user": "meter-1", "password": word}
        (found,) = request_certificate(where, device.request(), **how)
        trusted = certificates_in((folder / "ca.pem").read_bytes())
        certificates_in(found)[0].verify_directly_issued_by(trusted[0])
        assert fleet.rotate("ca", "--next", second) == OK
        both = certificates_in((folder / "ca.pem").read_bytes())
        digests = [certificates.fingerprint_of(one) for one in both]
        device.tls = Device("").tls
        softhsm.remove()
        with pytest.raises(EstError, match="503") as caught:
            request_certificate(where, device.request(), is_renewal=True, trusted=digests)
        assert caught.value.retry_after == 60
        softhsm.put_back()
        (found,) = until_answered(
            lambda: request_certificate(where, device.request(), is_renewal=True, trusted=digests)
        )
        certificates_in(found)[0].verify_directly_issued_by(both[1])
    assert fleet.rotate("ca", "--finish") == OK
    assert (folder / "ca.key").read_text() == f"{second}\n"
    assert ca("revoke", "meter-1", "--folder", folder) == OK
    softhsm.remove()
    assert ca("issue", "meter-2", "--folder", folder) == TEMPORARY
    assert "PKCS #11 token 'meter'" in capsys.readouterr().err


def until_answered(ask):
    """Ask again while the token is away: the server tries it every few seconds."""
    end = time.monotonic() + 60
    while True:
        try:
            return ask()
        except EstError:
            assert time.monotonic() < end
            time.sleep(0.5)


def test_a_key_in_a_token_signs_with_sha_256_alone_and_stays_there(softhsm):
    key = TokenKey(made(softhsm, "first", "p256")[0])
    signature = key.sign(b"text", ec.ECDSA(hashes.SHA256()))
    key.public_key().verify(signature, b"text", ec.ECDSA(hashes.SHA256()))
    with pytest.raises(UnsupportedAlgorithm, match="SHA-256"):
        key.sign(b"text", ec.ECDSA(hashes.SHA384()))
    with pytest.raises(UnsupportedAlgorithm, match="stays in its token"):
        key.private_numbers()


def test_a_key_of_another_kind_or_a_file_is_refused(softhsm, place, capsys):
    here = place()
    ed25519, _ = made(softhsm, "root")
    assert here.rotate("--next", ed25519) == USAGE
    assert "expected a P-256 key for an authority" in capsys.readouterr().err
    assert here.rotate("--next", "next.key") == USAGE
    assert "expected one PKCS#11 URI" in capsys.readouterr().err
    assert ca("init", here.ca.parent / "other", "--key", "pkcs11:token=a;object=b") == USAGE
    assert "expected ?module-path=FILE" in capsys.readouterr().err
    assert here.names() == ["North grid"]
