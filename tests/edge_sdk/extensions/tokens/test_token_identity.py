"""An identity key in a real PKCS #11 token: SoftHSM, and a TPM that swtpm emulates."""

from __future__ import annotations

import json
import re
import sys
from types import SimpleNamespace

import pytest

from edge_sdk.app.settings import SettingsError
from edge_sdk.commands.main import main
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError, SignerUnavailable, TokenRefused
from edge_sdk.extensions.tokens import pkcs11_library, pkcs11_token
from edge_sdk.extensions.tokens.pkcs11_token import Pkcs11Key, generate_in_token
from edge_sdk.extensions.tokens.pkcs11_uri import Pkcs11Uri, TokenPlace
from edge_sdk.extensions.tokens.token_identity import saved_status
from edge_sdk.protocol import keys
from edge_sdk.protocol.public_key import kind_of
from edge_sdk.protocol.statements import enrolment_statement
from edge_sdk.session.connection import SIGNER_AWAY
from edge_sdk.session.identity import TokenUnreachable, create_identity, load_signer
from edge_sdk.store.store import DeviceStore
from tests.pkcs11_tokens import PIN, opened

TOML = """
id = "meter-1"
fleet = "north"
state = "state"
bundle = "load-week-1"
broker = { url = "mqtt://127.0.0.1" }
keys = { device = "meter.key", root = "root.pub" }
privacy = { mechanism = { name = "none" } }
"""


@pytest.fixture
def softhsm(tmp_path):
    with opened("softhsm", tmp_path / "token") as token:
        yield token


@pytest.fixture(params=["softhsm", "swtpm"])
def token(request, tmp_path):
    with opened(request.param, tmp_path / "token") as token:
        yield token


@pytest.fixture
def configured(tmp_path):
    def write(section):
        path = tmp_path / "meter.toml"
        path.write_text(TOML + section + "\n")
        (tmp_path / "root.pub").write_text(keys.generate().public.hex())
        return path

    return write


def session_of(token):
    import pkcs11  # noqa: PLC0415 - installed where the fixture is not skipped

    reset(token)
    found = pkcs11.lib(str(token.module)).get_token(token_label="meter")
    return found.open(rw=True, user_pin=PIN)


def reset(token):
    """Forget every session, as a new process does."""
    pkcs11_library.library_of(str(token.module)).reset()


def patient(key):
    """Let the next use ask the token again at once."""
    key._retry_at = 0.0


def test_enrol_makes_a_key_in_the_token_that_never_leaves_it(token, configured, capsys, tmp_path):
    path = configured(token.section())
    assert main(["enrol", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    public, proof = bytes.fromhex(found["public"]), bytes.fromhex(found["proof"])
    assert (kind_of(public), found["is_new"]) == ("p256", True)
    assert keys.verify(public, proof, enrolment_statement("north", "meter-1", public))
    assert found["key"] == "PKCS #11 token 'meter', object 'gridfed'"
    assert keys.read_device_public(tmp_path / "meter.pub") == public
    assert not (tmp_path / "meter.key").exists()
    assert main(["enrol", str(path), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["public"], again["is_new"]) == (found["public"], False)
    key = load_signer(Config.load(path))
    assert key.public == public
    assert not key.is_extractable
    assert main(["check", str(path)]) == 0
    kid = keys.kid_of(public).hex()
    assert f"device key: {kid}, PKCS #11 token 'meter', object 'gridfed'" in capsys.readouterr().out
    with DeviceStore.open(tmp_path / "state"):
        pass
    assert main(["status", str(path)]) == 0
    assert "key: PKCS #11 token 'meter', object 'gridfed'" in capsys.readouterr().out


def test_ed25519_where_the_token_has_it(token, configured):
    config = Config.load(configured(token.section(curve="ed25519")))
    if not token.can_ed25519:
        with pytest.raises(ConfigError, match="the token makes no Ed25519 key"):
            create_identity(config)
        return
    key, is_new = create_identity(config)
    assert (kind_of(key.public), is_new) == ("ed25519", True)
    assert keys.verify(key.public, key.sign(b"said"), b"said")


def test_a_removed_token_is_reached_again_and_the_key_is_the_same(token, configured):
    config = Config.load(configured(token.section()))
    key, _ = create_identity(config)
    keys.save_public(config.keys.device.with_suffix(".pub"), key.public)
    assert keys.verify(key.public, key.sign(b"1"), b"1")
    token.remove()
    with pytest.raises(SignerUnavailable):
        key.sign(b"2")
    assert not key.reach()
    started_without = load_signer(config)
    assert started_without.public == key.public
    with pytest.raises(SignerUnavailable):
        started_without.sign(b"2")
    token.put_back()
    for one in (key, started_without):
        patient(one)
        assert one.reach()
        assert keys.verify(key.public, one.sign(b"3"), b"3")


def test_a_token_that_was_never_there_is_no_start(softhsm, configured, capsys):
    softhsm.remove()
    path = configured(softhsm.section())
    with pytest.raises(TokenUnreachable):
        load_signer(Config.load(path))
    assert main(["enrol", str(path)]) == 75
    assert "gridfed-edge: PKCS #11 token 'meter'" in capsys.readouterr().err


def test_check_refuses_a_token_that_is_away(softhsm, configured, capsys):
    path = configured(softhsm.section())
    assert main(["enrol", str(path)]) == 0
    assert main(["check", str(path)]) == 0
    softhsm.remove()
    reset(softhsm)
    assert main(["check", str(path)]) == 75
    assert "the token does not answer" in capsys.readouterr().err


def refusal(section, configured):
    with pytest.raises(ConfigError) as refused:
        create_identity(Config.load(configured(section)))
    assert PIN not in str(refused.value)
    return str(refused.value)


def test_each_misconfiguration_is_refused_by_its_reason(softhsm, configured, tmp_path, monkeypatch):
    section = softhsm.section()
    absent = section.replace(str(softhsm.module), "/nowhere/module.so")
    assert "PKCS #11 module /nowhere/module.so: no such file" in refusal(absent, configured)
    (tmp_path / "text.so").write_text("no library")
    other = section.replace(str(softhsm.module), str(tmp_path / "text.so"))
    assert re.search(r"PKCS #11 module .*text\.so: .*", refusal(other, configured))
    without = re.sub(r', pin_file = "[^"]*"', "", section)
    assert "asks for a PIN: set identity.pin_file" in refusal(without, configured)
    softhsm.pin.chmod(0o640)
    assert "other users can read the PIN: chmod 600" in refusal(section, configured)
    softhsm.pin.chmod(0o600)
    softhsm.pin.write_text("\n")
    assert "is empty, expected the PIN" in refusal(section, configured)
    softhsm.pin.unlink()
    assert "cannot read the PIN: No such file" in refusal(section, configured)
    with monkeypatch.context() as absent_package:
        absent_package.setitem(sys.modules, "pkcs11", None)
        assert "pip install 'gridfed[pkcs11]'" in refusal(section, configured)


def test_a_refused_pin_is_not_tried_again(softhsm, configured):
    section = softhsm.section()
    softhsm.pin.write_text("another-pin")
    wrong = refusal(section, configured)
    assert "the token refuses the PIN in" in wrong
    assert "another-pin" not in wrong
    session_of(softhsm).set_pin(PIN, "another-pin")  # now the refused one would be right
    reset(softhsm)
    assert "it is not tried again" in refusal(section, configured)
    pkcs11_library.library_of.cache_clear()  # as a new process
    create_identity(Config.load(configured(section)))


@pytest.mark.parametrize(
    ("flag", "why"),
    [("USER_PIN_LOCKED", "the PIN is locked"), ("USER_PIN_FINAL_TRY", "one attempt is left")],
)
def test_a_locked_pin_and_the_last_attempt_are_left_alone(softhsm, flag, why):
    """SoftHSM locks no PIN, so its token is shown with another flag; it must not be opened."""
    import pkcs11  # noqa: PLC0415 - installed where the fixture is not skipped

    place = TokenPlace(softhsm.module, Pkcs11Uri("meter", label="a"), "p256", softhsm.pin)
    shown = SimpleNamespace(flags=getattr(pkcs11.TokenFlag, flag), serial=b"1")  # without ``open``
    library = pkcs11_library.library_of(str(softhsm.module))
    with pytest.raises(TokenRefused, match=why):
        pkcs11_library._logged_in(library, shown, place, is_writable=False)


def test_a_key_of_another_kind_and_two_keys_of_one_name_are_refused(softhsm, configured):
    first, _ = create_identity(Config.load(configured(softhsm.section())))
    for use in (create_identity, load_signer):
        with pytest.raises(ConfigError, match="holds a key of type EC, expected Ed25519"):
            use(Config.load(configured(softhsm.section(curve="ed25519"))))
    second = TokenPlace(
        softhsm.module, Pkcs11Uri("meter", label="gridfed", id=b"\x07"), "p256", softhsm.pin
    )
    made, is_new = generate_in_token(second)
    assert is_new
    with pytest.raises(ConfigError, match="2 keys match; add id="):
        load_signer(Config.load(configured(softhsm.section())))
    uri = "pkcs11:token=meter;object=gridfed;id=%07"
    assert load_signer(Config.load(configured(softhsm.section(uri)))).public == made.public
    assert made.public != first.public


def test_two_tokens_of_one_label_are_refused(softhsm, configured):
    softhsm.initialise("meter")
    assert "2 tokens match; add serial=" in refusal(softhsm.section(), configured)


def test_a_creation_that_was_interrupted_is_repeated(softhsm, configured):
    """A kill may leave the public half: the private key's own one is found all the same."""
    import pkcs11  # noqa: PLC0415 - installed where the fixture is not skipped

    config = Config.load(configured(softhsm.section("pkcs11:token=meter;object=gridfed;id=%01")))
    lost, _ = create_identity(config)
    session = session_of(softhsm)
    wanted = {pkcs11.Attribute.CLASS: pkcs11.ObjectClass.PRIVATE_KEY}
    for one in list(session.get_objects(wanted)):
        one.destroy()
    reset(softhsm)
    with pytest.raises(ConfigError, match="has no such private key"):
        load_signer(config)
    key, is_new = create_identity(config)
    assert is_new
    assert key.public != lost.public
    assert keys.verify(key.public, key.sign(b"said"), b"said")


def test_another_key_under_the_same_name_is_refused(softhsm, configured, tmp_path):
    """The token was replaced: numbers would begin again under a key that nobody enrolled."""
    config = Config.load(configured(softhsm.section()))
    path = configured(softhsm.section())
    assert main(["enrol", str(path)]) == 0
    key = load_signer(config)
    assert pkcs11_token.destroy_in_token(config.identity.place.place)
    other, _ = generate_in_token(config.identity.place.place)
    assert other.public != key.public
    with pytest.raises(ConfigError, match=r"holds key .*, and .*meter\.pub is of key"):
        load_signer(config)
    with pytest.raises(SignerUnavailable, match="holds another key than the enrolled one"):
        key.sign(b"said")
    assert main(["enrol", str(path)]) == 0
    assert load_signer(config).public == other.public


def test_a_private_key_file_beside_the_token_is_refused(softhsm, configured, tmp_path):
    config = Config.load(configured(softhsm.section()))
    keys.save_signing_key(tmp_path / "meter.key", keys.generate())
    for use in (create_identity, load_signer):
        with pytest.raises(ConfigError, match=r"holds a private key, and identity\.key names one"):
            use(config)


def test_a_wipe_destroys_the_key_also_if_the_token_is_away_at_first(softhsm, configured, capsys):
    path = configured(softhsm.section())
    assert main(["enrol", str(path)]) == 0
    config = Config.load(path)
    with DeviceStore.open(config.state) as store:
        store.add_readings([("power", 7, 1.5, 0)])
    public = load_signer(config).public
    softhsm.remove()
    reset(softhsm)
    assert main(["wipe", str(path), "--yes"]) == 75
    assert "the key is still in the token" in capsys.readouterr().err
    with DeviceStore.open(config.state) as store:
        assert len(store.readings) == 0
    softhsm.put_back()
    assert main(["run", str(path)]) == 2  # the wipe is completed before anything else
    assert "wiped" in capsys.readouterr().err
    with pytest.raises(TokenRefused, match="no such private key"):
        Pkcs11Key(config.identity.place.place)
    assert main(["enrol", str(path)]) == 0
    assert load_signer(config).public != public


def test_the_pin_is_nowhere_in_what_is_printed(softhsm, configured, capsys, caplog):
    path = configured(softhsm.section())
    for words in (["enrol"], ["check"], ["enrol", "--json"]):
        assert main([words[0], str(path), *words[1:]]) == 0
    key = load_signer(Config.load(path))
    softhsm.remove()
    with pytest.raises(SignerUnavailable) as away:
        key.sign(b"said")
    load_signer(Config.load(path))
    shown = capsys.readouterr()
    text = f"{shown.out}{shown.err}{caplog.text}{key!r}{key.place!r}{away.value}"
    assert "unreachable" in text
    assert PIN not in text


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ('identity = { key = "meter.key", module = "m.so" }', r"identity: key: expected a URI"),
        ('identity = { key = "pkcs11:token=a;object=b" }', r"key: expected module"),
        ('identity = { module = "m.so" }', r"module: expected key"),
        ('identity = { pin_file = "pin" }', r"pin_file: expected key"),
    ],
)
def test_settings_that_do_not_belong_together_are_refused(configured, section, why):
    with pytest.raises(SettingsError, match=why):
        Config.load(configured(section))


def test_a_uri_in_place_of_the_key_file_is_refused(configured):
    path = configured("")
    path.write_text(path.read_text().replace("meter.key", "pkcs11:token=a;object=b"))
    with pytest.raises(SettingsError, match=r"identity\.key names a key in a token"):
        Config.load(path)


def test_status_says_since_when_the_token_is_away(tmp_path):
    with DeviceStore.open(tmp_path) as store:
        assert saved_status(None, store) == {}
        store.set_facts(**{SIGNER_AWAY: 1_800_000_000})
        assert saved_status(None, store) == {"token unreachable since": "2027-01-15 08:00 UTC"}
