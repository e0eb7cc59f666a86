"""The identity key of a device: made once, of the configured kind, and never silently another one."""

from __future__ import annotations

import json

import pytest

from edge_sdk.app.settings import SettingsError
from edge_sdk.commands.main import main
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError
from edge_sdk.protocol import keys
from edge_sdk.protocol.public_key import kind_of
from edge_sdk.protocol.statements import enrolment_statement
from edge_sdk.session.identity import create_identity, load_signer

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
def configured(tmp_path):
    def write(curve):
        path = tmp_path / "meter.toml"
        path.write_text(TOML + (f'identity = {{ curve = "{curve}" }}\n' if curve else ""))
        return path

    return write


@pytest.mark.parametrize(
    ("curve", "kind"),
    [
        ("", "ed25519"),
        ("ed25519", "ed25519"),
        pytest.param("p256", "p256", marks=pytest.mark.extension),
    ],
)
def test_enrol_makes_a_key_of_the_configured_kind_and_keeps_it(configured, capsys, curve, kind):
    path = configured(curve)
    assert main(["enrol", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    public, proof = bytes.fromhex(found["public"]), bytes.fromhex(found["proof"])
    assert kind_of(public) == kind
    assert keys.verify(public, proof, enrolment_statement("north", "meter-1", public))
    assert keys.read_device_public(path.with_name("meter.pub")) == public
    assert main(["enrol", str(path), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["public"], again["is_new"]) == (found["public"], False)


@pytest.mark.extension
@pytest.mark.parametrize(("first", "then"), [("p256", "ed25519"), ("ed25519", "p256")])
def test_a_key_of_another_kind_is_refused_and_kept(configured, first, then):
    config = Config.load(configured(first))
    made, is_new = create_identity(config)
    assert is_new
    other = Config.load(configured(then))
    for use in (load_signer, create_identity):
        with pytest.raises(ConfigError, match=f"of kind {first}, and identity.curve is {then}"):
            use(other)
    assert load_signer(config).public == made.public


@pytest.mark.extension
def test_a_missing_key_and_one_that_others_read_are_refused(configured):
    config = Config.load(configured("p256"))
    with pytest.raises(ConfigError, match="cannot read the key"):
        load_signer(config)
    create_identity(config)
    config.keys.device.chmod(0o644)
    with pytest.raises(ConfigError, match="other users can read"):
        load_signer(config)


def test_an_unknown_curve_is_refused(configured):
    with pytest.raises(
        SettingsError, match=r'identity\.curve: unknown "p384"; known: ed25519, p256'
    ):
        Config.load(configured("p384"))
