"""Keys of the root and of models in a real PKCS #11 token: SoftHSM."""

import subprocess
import sys

import pytest

from aggregator.commands import main as aggregator
from aggregator.config import AggregatorConfig
from aggregator.operations.signing_keys import model_signer, open_signer
from aggregator.rounds.message_isolation import is_defect
from edge_sdk.errors import OK, TEMPORARY, USAGE, SignerUnavailable
from edge_sdk.extensions.tokens.pkcs11_token import generate_in_token, token_place
from edge_sdk.extensions.tokens.pkcs11_uri import Pkcs11Uri, TokenPlace
from edge_sdk.protocol import keys
from edge_sdk.protocol.keys import KeyFileError
from edge_sdk.protocol.public_key import kind_of
from tests.pkcs11_tokens import opened

FLEET = """
fleet = "north"
state = "state"
broker = { url = "mqtt://127.0.0.1:1883" }
http = { listen = "off" }

[run]
bundle = "load-mlp"
method = "fedavg"
quorum = 2
deadline = "60s"
"""


@pytest.fixture
def softhsm(tmp_path):
    with opened("softhsm", tmp_path / "token") as token:
        yield token


def uri(token, label):
    return f"pkcs11:token=meter;object={label}?module-path={token.module}&pin-source={token.pin}"


def made(token, label, kind="ed25519"):
    """Make a key in the token; return its URI and its public key."""
    place = TokenPlace(token.module, Pkcs11Uri("meter", label=label), kind, token.pin)
    key, is_new = generate_in_token(place)
    assert is_new
    return uri(token, label), key.public


@pytest.mark.parametrize("kind", ["p256", "ed25519"])
def test_a_uri_opens_a_key_of_either_kind(softhsm, kind):
    name, public = made(softhsm, f"made-{kind}", kind)
    key = open_signer(name)
    assert (key.public, kind_of(key.public)) == (public, kind)
    assert keys.verify(public, key.sign(b"said"), b"said")


def test_what_is_missing_is_named_without_the_files_of_the_query(softhsm, tmp_path):
    for name, words in (
        (uri(softhsm, "absent"), "object 'absent'"),
        (uri(softhsm, "a").replace(str(softhsm.pin), "/no/such/pin"), "cannot read the PIN"),
        ("pkcs11:token=meter;object=a", "module-path=FILE"),
        (f"{uri(softhsm, 'a')}&pin-value=1234", "unknown query 'pin-value'"),
        (f"pkcs11:token=meter;object=a?module-path={tmp_path / 'absent.so'}", "no such file"),
        ("pkcs11:token=meter?module-path=/m.so", "object=NAME"),
    ):
        with pytest.raises(KeyFileError, match=words) as refused:
            open_signer(name)
        assert "pin-source" not in str(refused.value) or "pin-value" in words
        assert "1234" not in str(refused.value)
    assert token_place(uri(softhsm, "a")).pin_file == softhsm.pin


def test_the_root_is_two_tokens_of_two_persons(softhsm, tmp_path, capsys):
    """Two of two have to sign, and neither key is in a file."""
    path = tmp_path / "aggregator.toml"
    path.write_text(FLEET)
    assert aggregator.main(["init", str(path)]) == OK
    uris = [made(softhsm, f"person-{n}")[0] for n in range(2)]
    named = [word for one in uris for word in ("--next", one)]
    words = ["rotate", "root", *named, "--threshold", "2", "--config", str(path)]
    assert aggregator.main(words) == OK
    both = [word for one in uris for word in ("--root-key", one)]
    assert aggregator.main(["rotate", "root", "--finish", *both, "--config", str(path)]) == OK
    assert aggregator.main(["announce", str(path), *both]) == OK
    capsys.readouterr()
    assert aggregator.main(["announce", str(path), *both[:2]]) == USAGE
    assert "1 of its private keys are present, expected 2" in capsys.readouterr().err


def test_models_are_signed_by_a_token(softhsm, tmp_path):
    name, public = made(softhsm, "models")
    path = tmp_path / "aggregator.toml"
    path.write_text(f'{FLEET}\n[keys]\nmodel = "{name}"\n')
    assert aggregator.main(["init", str(path)]) == OK
    key = model_signer(AggregatorConfig.load(path, {}))
    assert key.public == public
    softhsm.remove()
    with pytest.raises(SignerUnavailable) as away:
        key.sign(b"manifest")
    assert not is_defect(away.value), "no message is set aside for it, and no run is halted"
    with pytest.raises(SignerUnavailable):
        open_signer(name)
    words = [sys.executable, "-m", "aggregator", "run", str(path)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == TEMPORARY, "the service manager starts it again"
    assert "PKCS #11 token 'meter'" in ended.stderr
    assert "Traceback" not in ended.stderr
    softhsm.put_back()
    assert open_signer(name).public == public
