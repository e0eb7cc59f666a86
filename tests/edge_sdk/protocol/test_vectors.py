"""The golden vectors: written once, the same for ever; and bad bytes are refused by name."""

import hashlib
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.encryption.encrypted_body import BodyContext, decrypted_body
from edge_sdk.extensions.encryption.hpke import DecryptionKey
from edge_sdk.protocol import codec, envelope, topics
from edge_sdk.protocol.messages import KINDS

FOLDER = Path(__file__).parents[2] / "vectors"
INDEX = json.loads((FOLDER / "index.json").read_text())
GOOD = sorted(name for name, case in INDEX["payloads"].items() if not case["refused"])
BAD = sorted(name for name, case in INDEX["payloads"].items() if case["refused"])


def generator():
    found = importlib.util.spec_from_file_location("vector_generator", FOLDER / "generate.py")
    module = importlib.util.module_from_spec(found)

    sys.modules[found.name] = module
    found.loader.exec_module(module)
    return module


def key_of(sender, kid):
    public = INDEX["keys"].get(sender)
    return bytes.fromhex(public) if public else None


OPEN = {who: DecryptionKey(bytes.fromhex(raw)) for who, raw in INDEX["decryption"].items()}


def decrypt_for(recipient):
    key = OPEN[recipient]

    def decrypt(kind, sender, body):
        context = BodyContext(INDEX["fleet"], kind, sender, recipient)
        return decrypted_body(body, lambda kid: key if kid == key.kid else None, context)

    return decrypt


def receive(name, raw=None):
    case = INDEX["payloads"][name]
    address = topics.parse(case["topic"])
    raw = raw if raw is not None else (FOLDER / f"{name}.bin").read_bytes()
    sealed = envelope.unseal(
        raw,
        kind=address.kind or envelope.kind_of(raw),
        sender=case["sender"],
        recipient=case["recipient"],
        fleet=INDEX["fleet"],
        key_of=key_of,
        decrypt=decrypt_for(case["recipient"]) if case["recipient"] in OPEN else None,
    )
    return codec.decode(case["kind"], sealed.content)


def test_the_generator_writes_these_very_bytes():
    made = generator().files()
    kept = {path.name for path in FOLDER.iterdir() if path.suffix in (".bin", ".json")}
    assert made.keys() == kept
    for name, data in made.items():
        assert data == (FOLDER / name).read_bytes(), name


def test_every_built_kind_has_a_vector():
    assert {INDEX["payloads"][name]["kind"] for name in GOOD} == set(KINDS)


@pytest.mark.parametrize("name", GOOD)
def test_a_valid_payload_decodes_to_the_index_entry(name):
    message = receive(name)
    plain = generator().said(message)
    assert plain == INDEX["payloads"][name]["fields"]


@pytest.mark.parametrize("name", BAD)
def test_a_bad_payload_is_refused_for_the_stated_reason(name):
    reason = INDEX["payloads"][name]["refused"]
    if reason == "BAD_CHUNK":  # well-formed; only the offer tells that there is no such chunk
        offer, chunk = receive("offer"), receive(name)
        assert chunk.id == offer.digest[:16]
        assert chunk.i >= -(-offer.size // offer.chunk)
        return
    with pytest.raises(Refused) as refused:
        codec.unpack_tensor(receive(name).blob, "f4", INDEX["size"])
    assert refused.value.reason is Reason[reason]


@pytest.mark.parametrize("bit", [0x01, 0x80, 0xFF])
@pytest.mark.parametrize("name", ["update", "update-p256"])
def test_every_flipped_byte_of_the_update_is_refused(name, bit):
    raw = (FOLDER / f"{name}.bin").read_bytes()
    for at in range(len(raw)):
        with pytest.raises(Refused):
            receive(name, raw[:at] + bytes([raw[at] ^ bit]) + raw[at + 1 :])


def test_every_cut_of_the_update_is_refused():
    raw = (FOLDER / "update.bin").read_bytes()
    for size in range(len(raw)):
        with pytest.raises(Refused) as refused:
            receive("update", raw[:size])
        assert refused.value.reason is Reason.MALFORMED


@pytest.mark.parametrize(
    ("name", "size", "begins"),
    [
        ("update", 188, "c0611f5d5158c257"),
        ("receipt", 146, "e73e2802f29feb40"),
        ("hello", 189, "2571f0b6a6fe7d02"),
    ],
)
def test_the_three_published_payloads_are_byte_equal(name, size, begins):
    raw = (FOLDER / f"{name}.bin").read_bytes()
    assert (len(raw), hashlib.sha256(raw).hexdigest()[:16]) == (size, begins)


def test_the_published_update_dump():
    dump = """
        9501a675 70646174 65aa6d65 7465722d 30303432 c45c928a a4626173 6529a365
        6e63a266 34a46c69 666503a1 6e40a470 617274a5 64656c74 61a5726f 756e6429
        a372756e 07a37365 710ca473 706563c4 10223bc5 eaf8caf6 e0b006fe e5a747c7
        dda57370 656e740c c4080000 003f0000 a0bfc448 56475aa7 5463474c 12291363
        79834240 de4793e4 a380ccf7 bba78deb cb726e58 f3d06ee8 035e92e9 05404ddb
        641172ba 992caf12 1e32beb8 24c51eee 3e099a1f 6b189f85 95e0d301
    """
    assert (FOLDER / "update.bin").read_bytes() == bytes.fromhex(dump)


def test_the_two_chunks_make_the_offered_body_and_its_proof_holds():
    offer, first, second = receive("offer"), receive("chunk-0"), receive("chunk-1")
    body = first.blob + second.blob
    assert (len(body), envelope.digest(body)) == (offer.size, offer.digest)
    envelope.check_proof(
        offer.digest,
        offer.sig,
        kind=offer.of,
        sender="meter-0042",
        recipient="_agg",
        fleet="north",
        key_of=key_of,
    )
    update = codec.decode(offer.of, body)
    assert (update.life, update.seq) == (offer.life, offer.seq)
    assert codec.unpack_tensor(update.blob, update.enc, 3000)[[0, 2999]].tolist() == [
        -125 / 64,
        (2999 % 251 - 125) / 64,
    ]


def test_the_part_is_the_content_its_manifest_announces():
    manifest, part = receive("model"), receive("part")
    assert envelope.digest(part.blob) == manifest.digest
    assert part.blob == (FOLDER / "body-content.bin").read_bytes()


@pytest.mark.parametrize("name", sorted(INDEX["tensors"]))
def test_a_tensor_decodes_to_the_index_entry(name):
    case = INDEX["tensors"][name]
    blob = (FOLDER / f"tensor-{name}.bin").read_bytes()
    got = codec.unpack_tensor(blob, case["enc"], len(case["vector"]))
    np.testing.assert_array_equal(got, case["vector"])
