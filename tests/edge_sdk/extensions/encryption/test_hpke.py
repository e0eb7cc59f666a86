"""HPKE against the vectors of RFC 9180, the library's own, a second package, and without either."""

import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.extensions.encryption import hpke
from edge_sdk.extensions.encryption.hpke import DecryptionKey, HpkeError, encrypt

# RFC 9180, appendix A.2.1: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20Poly1305, base mode
INFO = bytes.fromhex("4f6465206f6e2061204772656369616e2055726e")
EPHEMERAL = bytes.fromhex("f4ec9b33b792c372c1d2c2063507b684ef925b8c75a42dbcbf57d63ccd381600")
ENC = bytes.fromhex("1afa08d3dec047a643885163f1180476fa7ddb54c6a8029ea33f95796bf2ac4a")
PRIVATE = bytes.fromhex("8057991eef8f1f1af18f4a9491d16a1ce333f695d4db8e38da75975c4478e0fb")
PUBLIC = bytes.fromhex("4310ee97d88cc1f088a5576c77ab0cf5c3ac797f3d95139c6c84b5429c59662a")
PLAIN = bytes.fromhex("4265617574792069732074727574682c20747275746820626561757479")
AAD = bytes.fromhex("436f756e742d30")
CIPHERTEXT = bytes.fromhex(
    "1c5250d8034ec2b784ba2cfd69dbdb8af406cfe3ff938e131f0def8c8b60b4db21993c62ce81883d2dd1b51a28"
)
SMALL = (bytes(32), b"\x01" + bytes(31), b"\xec" + b"\xff" * 30 + b"\x7f")


@pytest.fixture(params=["of the library", "of the primitives"])
def way(request, monkeypatch):
    """Both ways to compute HPKE; the first exists only in newer releases of the library."""
    if request.param == "of the primitives":
        monkeypatch.setattr(hpke, "_suite", lambda: None)
    elif hpke._suite() is None:
        pytest.skip("this release of cryptography contains no HPKE")
    return request.param


def test_the_vector_of_the_rfc():
    one, key = DecryptionKey(EPHEMERAL), DecryptionKey(PRIVATE)
    assert (one.public, key.public) == (ENC, PUBLIC)
    secret, nonce = hpke._schedule(one._agreed(PUBLIC), ENC + PUBLIC, INFO)
    assert ChaCha20Poly1305(secret).encrypt(nonce, PLAIN, AAD) == CIPHERTEXT
    assert hpke._schedule(key._agreed(ENC), ENC + PUBLIC, INFO) == (secret, nonce)


def test_a_fixed_ephemeral_key_gives_fixed_bytes(way):
    sent = encrypt(PLAIN, PUBLIC, info=INFO, ephemeral=DecryptionKey(EPHEMERAL))
    assert sent[:32] == ENC
    assert len(sent) == 32 + len(PLAIN) + 16
    assert DecryptionKey(PRIVATE).decrypt(sent, info=INFO) == PLAIN


@given(
    plain=st.binary(max_size=300),
    info=st.binary(max_size=80),
    private=st.binary(min_size=32, max_size=32),
)
def test_either_way_reads_what_the_other_wrote(plain, info, private):
    if hpke._suite() is None:
        pytest.skip("this release of cryptography contains no HPKE")
    key, suite = DecryptionKey(private), hpke._suite
    sent = encrypt(plain, key.public, info=info)
    try:
        hpke._suite = lambda: None
        assert key.decrypt(sent, info=info) == plain
        again = encrypt(plain, key.public, info=info)
    finally:
        hpke._suite = suite
    assert key.decrypt(again, info=info) == plain


def test_a_second_package_agrees(way):
    pyhpke = pytest.importorskip("pyhpke", reason="pyhpke is not installed")
    suite = pyhpke.CipherSuite.new(
        pyhpke.KEMId.DHKEM_X25519_HKDF_SHA256,
        pyhpke.KDFId.HKDF_SHA256,
        pyhpke.AEADId.CHACHA20_POLY1305,
    )
    public = suite.kem.deserialize_public_key(PUBLIC)
    enc, sender = suite.create_sender_context(public, info=INFO)
    assert DecryptionKey(PRIVATE).decrypt(enc + sender.seal(PLAIN), info=INFO) == PLAIN

    sent = encrypt(PLAIN, PUBLIC, info=INFO)
    private = suite.kem.deserialize_private_key(PRIVATE)
    receiver = suite.create_recipient_context(sent[:32], private, info=INFO)
    assert receiver.open(sent[32:]) == PLAIN


@pytest.mark.parametrize("at", [0, 31, 32, 60, -1])
def test_a_changed_byte_is_noticed(way, at):
    key = DecryptionKey(PRIVATE)
    sent = bytearray(encrypt(PLAIN, PUBLIC, info=INFO))
    sent[at] ^= 1
    with pytest.raises(HpkeError):
        key.decrypt(bytes(sent), info=INFO)


def test_another_key_or_context_reads_nothing(way):
    sent = encrypt(PLAIN, PUBLIC, info=INFO)
    with pytest.raises(HpkeError, match="another key or context"):
        DecryptionKey(bytes(32)).decrypt(sent, info=INFO)
    with pytest.raises(HpkeError, match="another key or context"):
        DecryptionKey(PRIVATE).decrypt(sent, info=INFO + b"\0")
    with pytest.raises(HpkeError, match="ciphertext of 47 bytes"):
        DecryptionKey(PRIVATE).decrypt(sent[:47], info=INFO)


@pytest.mark.parametrize("public", [*SMALL, b"x", bytes(33)], ids=lambda key: key.hex()[:8])
def test_a_key_that_agrees_on_no_secret_is_refused(way, public):
    with pytest.raises(HpkeError, match="not an X25519 public key"):
        encrypt(PLAIN, public, info=INFO)
    if len(public) == 32:
        with pytest.raises(HpkeError):
            DecryptionKey(PRIVATE).decrypt(public + CIPHERTEXT, info=INFO)


def test_a_key_of_another_size_is_refused_and_never_printed():
    with pytest.raises(ValueError, match="32"):
        DecryptionKey(b"short")
    key = DecryptionKey.generate()
    assert key.raw.hex() not in repr(key)
    assert key.kid.hex() in repr(key)
    assert DecryptionKey(key.raw).public == key.public
