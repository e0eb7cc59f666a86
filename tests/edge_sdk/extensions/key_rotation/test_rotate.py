"""`gridfed-edge rotate`: the command begins what the order `reenrol` begins, and may be repeated."""

from __future__ import annotations

import pytest

from aggregator.operations.enrolment import former_key, read_claims, verify_claim
from edge_sdk.commands.main import main
from edge_sdk.config import Config
from edge_sdk.extensions.key_rotation import identity_rotation
from edge_sdk.extensions.key_rotation.identity_rotation import ORDERED, REQUESTED, UNORDERED
from edge_sdk.protocol.keys import from_seed, load_device_key, save_public
from edge_sdk.session.identity import STEP, IdentityKeys
from edge_sdk.store.store import DeviceStore

CONFIG = """
id = "meter-1"
fleet = "north"
state = "state"
bundle = "load-mlp"
broker = {{ url = "mqtts://localhost", ca_file = "ca.pem", cert_file = "tls.pem", key_file = "tls.pem" }}
keys = {{ device = "meter-1.key", root = "root.pub" }}
privacy = {{ mechanism = {{ name = "none" }} }}
{more}
"""


@pytest.fixture
def place(tmp_path):
    save_public(tmp_path / "root.pub", from_seed(bytes(32)).public)
    return tmp_path


def enrolled(place, more=""):
    (place / "meter.toml").write_text(CONFIG.format(more=more))
    assert main(["enrol", str(place / "meter.toml")]) == 0
    return str(place / "meter.toml")


def step(place):
    with DeviceStore.open(place / "state") as store:
        return store.fact(STEP)


def key(place, name="meter-1.key"):
    return load_device_key(place / name).public


def test_the_line_enrols_the_new_key_in_place_of_the_former_one_which_stays(place, capsys):
    config = enrolled(place)
    former = key(place)
    capsys.readouterr()
    assert main(["rotate", config]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert step(place) == REQUESTED
    assert key(place) == former
    (place / "lines.csv").write_text(line + "\n")
    (claim,) = read_claims(place / "lines.csv")
    assert verify_claim(claim, "north").public == key(place, "meter-1.key.next") != former
    assert former_key(claim, "north", [former]) == former
    for _ in range(2):  # the same line again, also from `enrol`
        for command in ("rotate", "enrol"):
            assert main([command, config]) == 0
            assert capsys.readouterr().out.splitlines()[-1] == line


def test_over_est_the_agent_is_to_request_a_certificate_with_the_new_key(place, capsys):
    config = enrolled(place, '[ca]\nurl = "https://ca.example:8443"\n')
    former = key(place)
    assert main(["rotate", config]) == 0
    assert "start the agent, which requests a certificate with it" in capsys.readouterr().out
    assert step(place) == ORDERED
    following = key(place, "meter-1.key.next")
    assert main(["rotate", config]) == 0
    assert (key(place), key(place, "meter-1.key.next")) == (former, following)
    assert main(["status", config]) == 0
    assert "a new key is requested from the EST server" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["save_signing_key", "succession_line"])
def test_a_kill_before_the_key_or_the_line_is_completed_by_the_same_command(
    place, capsys, monkeypatch, name
):
    class KilledError(BaseException):
        """The process ends here."""

    def killed(*_):
        raise KilledError

    config = enrolled(place)
    with monkeypatch.context() as patch:
        patch.setattr(identity_rotation, name, killed)
        with pytest.raises(KilledError):
            main(["rotate", config])
    assert step(place) > 0
    assert main(["rotate", config]) == 0
    public = capsys.readouterr().out.splitlines()[-1].split(",")[1]
    assert public == key(place, "meter-1.key.next").hex()


TOKEN = """
[identity]
key = "pkcs11:token=fleet;object=meter"
module = "module.so"
pin_file = "pin"
"""

FURTHER = """
[[participation]]
id = "meter-1-b"
bundle = "load-mlp"
cert_file = "b.pem"
key_file = "b.pem"
"""


def test_without_a_key_nothing_is_made(place, capsys):
    config = enrolled(place)
    (place / "meter-1.key").unlink()
    assert main(["rotate", config]) != 0
    assert "gridfed-edge enrol" in capsys.readouterr().err
    assert not (place / "meter-1.key.next").exists()


@pytest.mark.parametrize(
    ("more", "why"), [(TOKEN, "is in a token"), (FURTHER, "further [[participation]] use the key")]
)
def test_a_key_that_cannot_be_replaced_is_refused(place, capsys, more, why):
    config = enrolled(place)
    (place / "meter.toml").write_text(CONFIG.format(more=more))
    assert main(["rotate", config]) != 0
    assert why in capsys.readouterr().err
    assert step(place) == UNORDERED
    assert not (place / "meter-1.key.next").exists()


def test_an_order_of_the_operator_is_refused_for_a_key_in_a_token(place):
    (place / "meter.toml").write_text(CONFIG.format(more=TOKEN))
    with DeviceStore.open(place / "state") as store:
        config = Config.load(place / "meter.toml")
        assert not IdentityKeys(config, store, from_seed(bytes(32))).order()
