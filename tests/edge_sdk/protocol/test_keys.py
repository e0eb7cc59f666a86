import os
import stat

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import x25519

from edge_sdk.protocol import keys
from edge_sdk.protocol.keys import KeyFileError

# RFC 8032, section 7.1, test 2: one byte of message.
SEED = bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
PUBLIC = bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
SIGNATURE = bytes.fromhex(
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
    "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
)


def test_signatures_equal_those_of_rfc_8032():
    key = keys.from_seed(SEED)
    assert (key.public, key.sign(b"\x72")) == (PUBLIC, SIGNATURE)
    assert keys.verify(PUBLIC, SIGNATURE, b"\x72")


@pytest.mark.parametrize(
    ("public", "signature", "data"),
    [
        (PUBLIC, SIGNATURE, b"\x73"),
        (PUBLIC, SIGNATURE[:-1], b"\x72"),
        (PUBLIC, b"", b"\x72"),
        (PUBLIC[:-1], SIGNATURE, b"\x72"),
        (bytes(32), SIGNATURE, b"\x72"),
        (b"\xff" * 32, SIGNATURE, b"\x72"),
    ],
)
def test_anything_else_verifies_nothing_and_raises_nothing(public, signature, data):
    assert not keys.verify(public, signature, data)


def test_every_key_is_new():
    assert keys.generate().public != keys.generate().public


def test_a_key_survives_its_file_and_only_its_owner_reads_it(tmp_path):
    path, key = tmp_path / "device.key", keys.generate()
    keys.save_signing_key(path, key)
    assert keys.load_signing_key(path).public == key.public
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["device.key"]
    assert path.read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----")


def test_the_mode_is_right_from_the_first_moment(tmp_path, monkeypatch):
    modes = []
    real = os.fsync

    def watch(fd):
        modes.append(stat.S_IMODE(os.fstat(fd).st_mode))
        real(fd)

    monkeypatch.setattr(os, "fsync", watch)
    keys.save_signing_key(tmp_path / "device.key", keys.generate())
    assert modes[0] == 0o600


def test_a_failed_write_leaves_the_old_key_and_no_litter(tmp_path, monkeypatch):
    path, old = tmp_path / "device.key", keys.generate()
    keys.save_signing_key(path, old)

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        keys.save_signing_key(path, keys.generate())
    monkeypatch.undo()
    assert keys.load_signing_key(path).public == old.public
    assert [p.name for p in tmp_path.iterdir()] == ["device.key"]


def test_a_public_key_is_read_from_hex_or_from_its_file(tmp_path):
    path = tmp_path / "device.pub"
    keys.save_public(path, PUBLIC)
    assert path.read_text() == PUBLIC.hex() + "\n"
    assert keys.read_public(path) == keys.read_public(PUBLIC.hex()) == PUBLIC


@pytest.mark.parametrize("content", [b"", b"xyz", b"00" * 31, b"00" * 33, b"\xff\xfe"])
def test_an_invalid_public_key_is_refused(tmp_path, content):
    path = tmp_path / "bad.pub"
    path.write_bytes(content)
    with pytest.raises(KeyFileError, match="64 hex digits"):
        keys.read_public(path)


def test_a_missing_file_is_named(tmp_path):
    for read in (keys.read_public, keys.load_signing_key):
        with pytest.raises(KeyFileError, match=r"none\.key: cannot read the key: No such file"):
            read(tmp_path / "none.key")


def test_a_file_that_is_no_key_is_refused(tmp_path):
    path = tmp_path / "bad.key"
    path.write_bytes(b"not a key")
    with pytest.raises(KeyFileError, match="not an unencrypted PEM"):
        keys.load_signing_key(path)


def test_another_kind_of_key_is_refused(tmp_path):
    path = tmp_path / "other.key"
    path.write_bytes(
        x25519.X25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    with pytest.raises(KeyFileError, match="expected an Ed25519 key"):
        keys.load_signing_key(path)


def test_an_encrypted_key_is_refused_not_asked_about(tmp_path):
    path = tmp_path / "locked.key"
    private = serialization.load_pem_private_key(keys.generate().pem(), None)
    path.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"x"),
        )
    )
    with pytest.raises(KeyFileError, match="unencrypted"):
        keys.load_signing_key(path)


def test_a_key_never_shows_itself():
    key = keys.from_seed(SEED)
    assert repr(key) == f"SigningKey({key.kid.hex()})"
    assert SEED.hex() not in f"{key!r}{key!s}"
