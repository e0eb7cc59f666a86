"""P-256 identities: published vectors, every wrong form, and random bytes."""

from __future__ import annotations

import stat

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from hypothesis import example, given
from hypothesis import strategies as st

from edge_sdk.app.schema import SchemaError
from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.p256.p256_key import P256SigningKey
from edge_sdk.extensions.peers.topology import NeighboursSection, settings_of_section
from edge_sdk.protocol import codec, keys, public_key
from edge_sdk.protocol.keys import KeyFileError
from edge_sdk.protocol.messages import KeysMessage, TaskMessage

# RFC 6979, appendix A.2.5: key, and signatures with SHA-256.
PRIVATE = 0xC9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721
PUBLIC = bytes.fromhex("0360fed4ba255a9d31c961eb74c6356d68c049b8923b61fa6ce669622e60f29fb6")
SIGNED = {
    b"sample": (
        0xEFD48B2AACB6A8FD1140DD9CD45E81D69D2C877B56AAF991C34D0EA84EAF3716,
        0xF7CB1C942D657C41D436C7A1B6E29F65F3E900DBB9AFF4064DC4AB2F843ACDA8,
    ),
    b"test": (
        0xF1ABB023518351CD71D881567B1EA663ED3EFCF6C5132B354F28D3B0B7D38367,
        0x019F4113742A2B14BD25926B49C649155F267E60D3814B4C0CC84250E46F0083,
    ),
}


def key_of(number):
    return P256SigningKey(ec.derive_private_key(number, ec.SECP256R1()))


KEY = key_of(PRIVATE)


def raw(r, s):
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


@pytest.mark.parametrize("data", SIGNED)
def test_the_signatures_of_rfc_6979_verify_with_the_smaller_s_alone(data):
    r, s = SIGNED[data]
    small, large = sorted((s, public_key.P256_ORDER - s))
    assert KEY.public == PUBLIC
    assert keys.verify(PUBLIC, raw(r, small), data)
    assert not keys.verify(PUBLIC, raw(r, large), data)
    assert (
        public_key.p256_signature(r, s)
        == public_key.p256_signature(r, public_key.P256_ORDER - s)
        == raw(r, small)
    )


def test_a_signer_with_deterministic_nonces_makes_these_signatures():
    try:
        ec.ECDSA(hashes.SHA256(), deterministic_signing=True)
    except Exception:  # noqa: BLE001 - of an old library or of an old OpenSSL
        pytest.skip("the cryptography library has no deterministic nonces")
    for data, (r, s) in SIGNED.items():
        assert KEY.sign(data) == public_key.p256_signature(r, s)


def test_half_of_the_random_signatures_needed_the_smaller_s():
    """A signer that sent what the library answers would be refused half of the time."""
    private, large = ec.derive_private_key(PRIVATE, ec.SECP256R1()), 0
    for n in range(64):
        data = bytes([n])
        r, s = decode_dss_signature(private.sign(data, ec.ECDSA(hashes.SHA256())))
        large += s > public_key.P256_ORDER // 2
        assert keys.verify(PUBLIC, raw(r, s), data) == (s <= public_key.P256_ORDER // 2)
        assert keys.verify(PUBLIC, public_key.p256_signature(r, s), data)
    assert 0 < large < 64


@pytest.mark.parametrize(
    ("r", "s"),
    [
        (0, 1),
        (1, 0),
        (0, 0),
        (public_key.P256_ORDER, 1),
        (1, public_key.P256_ORDER),
        (2**256 - 1, 2**256 - 1),
    ],
)
def test_numbers_out_of_range_verify_nothing(r, s):
    assert not public_key.is_canonical_p256(raw(r, s))
    assert not keys.verify(PUBLIC, raw(r, s), b"sample")


def test_a_signature_counts_only_by_the_kind_of_its_key():
    edwards, data = keys.generate(), b"said"
    assert not keys.verify(PUBLIC, edwards.sign(data), data)
    assert not keys.verify(edwards.public, KEY.sign(data), data)
    assert not keys.verify(PUBLIC[1:], KEY.sign(data), data)  # x alone, as 32 bytes
    assert not keys.verify(b"\x02" + edwards.public, edwards.sign(data), data)


@given(st.binary(max_size=40), st.binary(max_size=70), st.binary(max_size=10))
@example(PUBLIC, KEY.sign(b"x") + b"\0", b"x")
@example(PUBLIC, KEY.sign(b"x")[:-1], b"x")
@example(b"\x04" + PUBLIC[1:], KEY.sign(b"x"), b"x")
@example(bytes(33), KEY.sign(b"x"), b"x")
def test_random_bytes_verify_nothing_and_raise_nothing(public, signature, data):
    assert keys.verify(public, signature, data) is False


@given(st.integers(0, 63), st.integers(0, 7), st.binary(max_size=20))
def test_every_changed_bit_of_a_signature_is_refused(at, bit, data):
    signature = bytearray(KEY.sign(data))
    assert keys.verify(PUBLIC, bytes(signature), data)
    signature[at] ^= 1 << bit
    assert not keys.verify(PUBLIC, bytes(signature), data)


@given(st.sampled_from((0, 1, 2, 3, 4, 6, 7, 255)), st.binary(min_size=32, max_size=32))
@example(2, b"\xff" * 32)
@example(2, (2**256 - 2**224 + 2**192 + 2**96 - 1).to_bytes(32, "big"))
@example(3, PUBLIC[1:])
def test_a_key_is_weak_exactly_where_the_library_knows_no_compressed_point(first, x):
    public = bytes((first,)) + x
    try:
        ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), public)
        is_point = True
    except ValueError:
        is_point = False
    assert (public_key.weakness(public) == "") == is_point


@given(st.integers(1, public_key.P256_ORDER - 1))
def test_every_honest_key_is_safe(number):
    assert public_key.weakness(key_of(number).public) == ""


def test_a_key_survives_its_file_and_only_its_owner_reads_it(tmp_path):
    path = tmp_path / "device.key"
    keys.save_signing_key(path, KEY)
    loaded = keys.load_device_key(path)
    assert isinstance(loaded, P256SigningKey)
    assert (loaded.public, loaded.kid) == (PUBLIC, keys.kid_of(PUBLIC))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert repr(loaded) == f"P256SigningKey({KEY.kid.hex()})"


def test_a_key_of_openssl_in_its_older_form_is_read(tmp_path):
    path = tmp_path / "sec1.key"
    private = ec.derive_private_key(PRIVATE, ec.SECP256R1())
    path.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    assert keys.load_device_key(path).public == PUBLIC


def test_another_curve_is_refused(tmp_path):
    path = tmp_path / "p384.key"
    path.write_bytes(
        ec.generate_private_key(ec.SECP384R1()).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    with pytest.raises(KeyFileError, match="an Ed25519 key or a P-256 key"):
        keys.load_device_key(path)


def test_root_and_aggregator_have_ed25519_keys_alone(tmp_path):
    keys.save_signing_key(tmp_path / "root.key", KEY)
    keys.save_public(tmp_path / "root.pub", PUBLIC)
    with pytest.raises(KeyFileError, match="expected an Ed25519 key, got a P-256 key"):
        keys.load_signing_key(tmp_path / "root.key")
    with pytest.raises(KeyFileError, match="expected 64 hex digits"):
        keys.read_public(tmp_path / "root.pub")
    said = codec.encode(KeysMessage(1, (keys.generate().public,), (), (0,), (1,), 1))
    other = said.replace(b"\xc4\x20" + said.split(b"\xc4\x20")[1][:32], b"\xc4\x21" + PUBLIC)
    with pytest.raises(Refused) as refused:
        codec.decode(KeysMessage, other)
    assert refused.value.reason is Reason.MALFORMED


def test_a_devices_public_key_is_read_in_both_kinds(tmp_path):
    keys.save_public(tmp_path / "device.pub", PUBLIC)
    edwards = keys.generate().public
    assert keys.read_device_public(tmp_path / "device.pub") == PUBLIC
    assert keys.read_device_public(PUBLIC.hex().upper()) == PUBLIC
    assert keys.read_device_public(edwards.hex()) == edwards


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("02" + "ff" * 32, "canonical"),
        ("02" + "00" * 31 + "01", "no point|not a point"),
        ("04" + "00" * 32, r"64 hex digits \(Ed25519\) or 66"),
        ("03" * 31, "64 hex digits"),
        ("00" * 32, "small order"),
    ],
)
def test_an_unsafe_public_key_is_refused_with_a_sentence(tmp_path, text, says):
    path = tmp_path / "device.pub"
    path.write_text(text)
    with pytest.raises(KeyFileError, match=says):
        keys.read_device_public(path)


def test_a_neighbour_may_have_such_a_key_and_a_point_off_the_curve_is_refused():
    off = b"\x02" + bytes(31) + b"\x01"
    assert public_key.p256_weakness(off)
    task = TaskMessage(
        1, 1, 1, "begin", bytes(16), peers=("a", "b"), keys=(PUBLIC, bytes([9]) * 32)
    )
    assert codec.decode(TaskMessage, codec.encode(task)).keys == task.keys
    with pytest.raises(ValueError, match="keys: "):
        TaskMessage(1, 1, 1, "begin", bytes(16), peers=("b",), keys=(off,))
    section = NeighboursSection(keys={"b": PUBLIC.hex()})
    assert settings_of_section(section, "dfl_sgd").keys == {"b": PUBLIC}
    with pytest.raises(SchemaError, match=r"neighbours\.keys\.b"):
        settings_of_section(NeighboursSection(keys={"b": off.hex()}), "dfl_sgd")
