"""A claim is proved for one fleet and one id; keys are made once and never silently replaced."""

import stat

import pytest

from aggregator.operations.enrolment import (
    Claim,
    EnrolError,
    claim_of,
    keys_of,
    read_claims,
    statement,
    verify_claim,
)
from aggregator.operations.signing_keys import RootKeyError
from edge_sdk.protocol import keys

KEY = keys.from_seed(bytes(range(32)))
PROOF = KEY.sign(statement("north", "meter-1", KEY.public))


def test_a_proved_claim_passes():
    claim = Claim("meter-1", KEY.public, PROOF)
    assert verify_claim(claim, "north") == claim


@pytest.mark.parametrize(
    ("fleet", "device", "proof"),
    [("south", "meter-1", PROOF), ("north", "meter-2", PROOF), ("north", "meter-1", bytes(64))],
)
def test_a_proof_holds_for_one_fleet_one_id_one_key(fleet, device, proof):
    with pytest.raises(EnrolError, match="the proof does not match"):
        verify_claim(Claim(device, KEY.public, proof), fleet)


def test_without_a_proof_the_operator_vouches():
    assert verify_claim(Claim("meter-1", KEY.public), "north").proof == b""


@pytest.mark.parametrize("device", ["_agg", "a/b", "", "x" * 65, "-a", "mé"])
def test_ids_that_cannot_be(device):
    with pytest.raises(EnrolError, match="is not a valid device id"):
        verify_claim(Claim(device, KEY.public), "north")


@pytest.mark.parametrize("proof", ["zz", "00"])
def test_a_proof_is_hex_of_the_right_length(proof):
    with pytest.raises(EnrolError, match="128 hex digits"):
        claim_of("meter-1", KEY.public.hex(), proof)


def test_many_from_a_file(tmp_path):
    keys.save_public(tmp_path / "b.pub", KEY.public)
    path = tmp_path / "fleet.csv"
    path.write_text(f"id,public,proof\na,{KEY.public.hex()},\nb,{tmp_path / 'b.pub'},{'00' * 64}\n")
    first, second = read_claims(path)
    assert first == Claim("a", KEY.public)
    assert (second.public, second.proof) == (KEY.public, bytes(64))


def test_a_file_of_the_lines_that_devices_print_is_read_without_names(tmp_path):
    path = tmp_path / "lines.csv"
    path.write_text(f"a,{KEY.public.hex()},{'00' * 64}\nb,{KEY.public.hex().upper()},\nc,zz,\n")
    claims = read_claims(path)
    assert [next(claims), next(claims)] == [
        Claim("a", KEY.public, bytes(64)),
        Claim("b", KEY.public),
    ]
    with pytest.raises(EnrolError, match="line 3: c: zz: cannot read"):
        next(claims)


@pytest.mark.extension
def test_a_claim_with_a_p256_key_passes_and_a_point_off_the_curve_does_not(tmp_path):
    key = keys.generate_device_key("p256")
    proof = key.sign(statement("north", "meter-1", key.public))
    path = tmp_path / "lines.csv"
    path.write_text(f"meter-1,{key.public.hex()},{proof.hex()}\n")
    (claim,) = read_claims(path)
    assert verify_claim(claim, "north") == Claim("meter-1", key.public, proof)
    with pytest.raises(EnrolError, match="the proof does not match"):
        verify_claim(claim, "south")
    off = b"\x02" + bytes(31) + b"\x01"
    with pytest.raises(EnrolError, match="not a point"):
        claim_of("meter-1", off.hex())
    with pytest.raises(EnrolError, match="not a point"):
        verify_claim(Claim("meter-1", off), "north")
    with pytest.raises(EnrolError, match="has 34 bytes"):
        verify_claim(Claim("meter-1", bytes(34)), "north")


@pytest.mark.parametrize(
    ("text", "says"),
    [("name,key\n", "columns id and public"), ("id,public\na,zz\n", "line 2: a: zz: cannot read")],
)
def test_a_bad_file_says_where(tmp_path, text, says):
    path = tmp_path / "fleet.csv"
    path.write_text(text)
    with pytest.raises(EnrolError, match=says):
        list(read_claims(path))


def made(folder, **more):
    return keys_of(folder, folder / "aggregator.key", folder / "root.pub", **more)


def test_keys_are_private_and_made_once(tmp_path):
    root, online = made(tmp_path / "state")
    assert made(tmp_path / "state")[0].public == root.public
    assert root.public != online.public
    for name in ("root.key", "aggregator.key"):
        assert stat.S_IMODE((tmp_path / "state" / name).stat().st_mode) == 0o600


def test_no_second_root_is_made_when_the_first_was_moved_away(tmp_path):
    root, _ = made(tmp_path)
    (tmp_path / "root.key").rename(tmp_path / "offline.key")
    with pytest.raises(RootKeyError, match="this fleet has a root"):
        made(tmp_path)
    assert made(tmp_path, root_keys=[str(tmp_path / "offline.key")])[0].public == root.public


def test_another_root_key_is_refused(tmp_path):
    made(tmp_path)
    keys.save_signing_key(tmp_path / "other.key", KEY)
    with pytest.raises(RootKeyError, match="0 of its private keys are present"):
        made(tmp_path, root_keys=[str(tmp_path / "other.key")])


@pytest.mark.parametrize("public", [bytes(32), bytes([1]) + bytes(31), b"\xff" * 32])
def test_a_key_for_which_anybody_can_sign_is_refused(public):
    """With and without a proof: the proof of such a key proves nothing."""
    with pytest.raises(EnrolError, match=f"meter-1: the public key {public.hex()} is "):
        verify_claim(Claim("meter-1", public), "north")
    with pytest.raises(EnrolError, match=r"meter-1: .* the public key"):
        claim_of("meter-1", public.hex())
