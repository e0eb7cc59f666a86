"""Keys in a security token: SoftHSM signs in place of a file, for device, aggregator and root."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from aggregator.commands import main as aggregator
from edge_sdk.app.cli import OK, USAGE
from edge_sdk.commands import main as edge
from edge_sdk.wire import key_store, keys
from edge_sdk.wire.key_store import TokenUri, open_signer
from edge_sdk.wire.keys import KeyFileError
from edge_sdk.wire.public_key import kind_of

MODULES = [
    Path("/usr/lib/softhsm/libsofthsm2.so"),
    Path("/usr/lib64/pkcs11/libsofthsm2.so"),
    Path("/opt/homebrew/lib/softhsm/libsofthsm2.so"),
]
REPO = Path(__file__).parents[3]

TOML = """
id = "meter-1"
fleet = "north"
state = "state"
bundle = "load-mlp"
broker = {{ url = "mqtt://127.0.0.1:1" }}
keys = {{ device = "{uri}", root = "root.pub" }}
identity = {{ curve = "{curve}" }}
privacy = {{ mechanism = {{ name = "none" }} }}
"""


@pytest.fixture(scope="module")
def softhsm(tmp_path_factory):
    """A token of its own; PKCS#11 is initialised once in a process, so the module shares it."""
    pytest.importorskip("pkcs11", reason="python-pkcs11 is not installed (extra pkcs11)")
    module = next(filter(Path.exists, MODULES), None)
    if module is None or shutil.which("softhsm2-util") is None:
        pytest.skip("softhsm2 is not installed")
    place = tmp_path_factory.mktemp("softhsm")
    (place / "tokens").mkdir()
    (place / "pin").write_text("1234\n")
    config = place / "softhsm2.conf"
    config.write_text(f"directories.tokendir = {place / 'tokens'}\nobjectstore.backend = file\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTHSM2_CONF", str(config))
        subprocess.run(
            ["softhsm2-util", "--init-token", "--free", "--label", "meter", "--pin", "1234",
             "--so-pin", "5678"],
            check=True, capture_output=True,
        )  # fmt: skip
        yield (
            lambda label, pin="pin": (
                f"pkcs11:token=meter;object={label}?module-path={module}&pin-source={place / pin}"
            )
        )


@pytest.mark.parametrize("kind", ["p256", "ed25519"])
def test_a_token_makes_a_key_and_signs_what_everybody_verifies(softhsm, kind):
    uri = softhsm(f"made-{kind}")
    assert not key_store.has_key(uri)
    made = key_store.make_token_key(uri, kind)
    assert kind_of(made.public) == kind
    again = open_signer(uri)
    assert again.public == made.public
    for number in range(8):  # an ECDSA signature has the larger s every second time
        said = bytes([number]) * 100
        assert keys.verify(made.public, again.sign(said), said)
        assert not keys.verify(made.public, again.sign(said), said + b"!")
    with pytest.raises(KeyFileError, match="already"):
        key_store.make_token_key(uri, kind)
    key_store.delete_key(uri)
    assert not key_store.has_key(uri)
    key_store.delete_key(uri)  # repeatable


def test_what_is_missing_is_named(softhsm, tmp_path):
    with pytest.raises(KeyFileError, match="token=meter;object=absent"):
        open_signer(softhsm("absent"))
    with pytest.raises(KeyFileError, match="pin-source"):
        TokenUri.parse(softhsm("a", pin="no-such-file")).pin()
    with pytest.raises(KeyFileError, match="token=other"):
        open_signer(softhsm("a").replace("token=meter", "token=other"))
    with pytest.raises(KeyFileError, match="expected token="):
        open_signer("pkcs11:token=meter")
    with pytest.raises(KeyFileError, match="token=meter"):
        open_signer(f"pkcs11:token=meter;object=a?module-path={tmp_path / 'absent.so'}")


@pytest.mark.parametrize("curve", ["p256", "ed25519"])
def test_a_device_enrols_with_a_key_that_no_file_has(softhsm, tmp_path, capsys, curve):
    uri = softhsm(f"device-{curve}")
    config = tmp_path / "meter.toml"
    config.write_text(TOML.format(uri=uri, curve=curve))
    keys.save_public(tmp_path / "root.pub", keys.generate().public)
    assert edge.main(["enrol", str(config)]) == OK
    line = capsys.readouterr().out.splitlines()[-1]
    device, public, proof = line.split(",")
    assert (device, len(public), len(proof)) == ("meter-1", 66 if curve == "p256" else 64, 128)
    assert edge.main(["enrol", str(config)]) == OK  # the same key again
    assert public in capsys.readouterr().out
    assert edge.main(["check", str(config)]) == OK
    assert not list(tmp_path.rglob("*.key"))
    capsys.readouterr()
    assert edge.main(["wipe", str(config), "--yes"]) == OK
    assert not key_store.has_key(uri)
    other = "ed25519" if curve == "p256" else "p256"
    key_store.make_token_key(uri, other)
    assert edge.main(["check", str(config)]) == USAGE
    assert "identity.curve" in capsys.readouterr().err
    key_store.delete_key(uri)


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


def test_the_root_is_two_tokens_of_two_persons(softhsm, tmp_path, capsys):
    """Two of two have to sign, and neither key is in a file."""
    path = tmp_path / "aggregator.toml"
    path.write_text(FLEET)
    assert aggregator.main(["init", str(path)]) == OK
    uris = [softhsm(f"person-{n}") for n in range(2)]
    for uri in uris:
        key_store.make_token_key(uri, "ed25519")
    named = [word for uri in uris for word in ("--next", uri)]
    words = ["rotate", "root", *named, "--threshold", "2", "--config", str(path)]
    assert aggregator.main(words) == OK
    both = [word for uri in uris for word in ("--root-key", uri)]
    assert aggregator.main(["rotate", "root", "--finish", *both, "--config", str(path)]) == OK
    assert aggregator.main(["announce", str(path), *both]) == OK
    capsys.readouterr()
    assert aggregator.main(["announce", str(path), *both[:2]]) == USAGE
    assert "1 of its private keys are present, expected 2" in capsys.readouterr().err


def test_models_are_signed_by_a_token(softhsm, tmp_path):
    uri = softhsm("models")
    made = key_store.make_token_key(uri, "ed25519")
    path = tmp_path / "aggregator.toml"
    path.write_text(f'{FLEET}\n[keys]\nmodel = "{uri}"\n')
    assert aggregator.main(["init", str(path)]) == OK
    from aggregator.config import AggregatorConfig  # noqa: PLC0415 - only here
    from aggregator.operations.signing_keys import model_signer  # noqa: PLC0415 - only here

    assert model_signer(AggregatorConfig.load(path, {})).public == made.public


def test_without_the_package_the_remedy_is_named():
    """The agent starts without python-pkcs11; only a URI needs it."""
    code = (
        "import sys; sys.modules['pkcs11'] = None\n"
        "from edge_sdk.wire.key_store import open_signer\n"
        "open_signer('pkcs11:token=a;object=b?module-path=/m.so')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=REPO
    )
    assert "pip install 'gridfed[pkcs11]'" in ended.stderr


def test_a_pin_is_never_in_a_message(softhsm, tmp_path):
    """Messages name token and key, not the query with the files."""
    uri = softhsm("absent")
    with pytest.raises(KeyFileError) as refused:
        open_signer(uri)
    assert "pin-source" not in str(refused.value)
    assert stat.S_ISREG(Path(TokenUri.parse(uri).pin_source).stat().st_mode)
