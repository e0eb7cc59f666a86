# ruff: noqa: E741, N818, PLR0911, PLR0917, SIM905 - it reads as its C twin would
"""A second decoder, written from PROTOCOL.md alone, in the way one would write it in C.

It shares no line with ``edge_sdk``: no import, no msgpack library, no dataclasses. One pass over
the bytes, an index, and a table of what each kind must say. It returns dicts or raises ``Bad``.
"""

import base64
import hashlib
import struct

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

I, S, B, F, L, M, T = "int", "str", "bin", "float", "list", "map", "bool"

# kind: (has blob, {key: (type, lowest, highest)}, optional keys); for S, B, L, M the range is of
# the length. This table is PROTOCOL.md section 5.
ANY = (I, 0, 2**53 - 1)
ONE = (I, 1, 2**53 - 1)
SPENT = (I, 0, 2**31 - 1)
TIME = (I, 0, 253402300799999)
SPAN = (I, 0, 31 * 86400000)
WAIT = (I, 0, 86400000)
REAL = 3.4028234663852886e38
REF = (B, 16, 16)
TABLE = {
    "status": (0, {"state": (S, 4, 8), "life": ANY, "conn": (I, 0, 2**32 - 1)}, ""),
    "hello": (
        0,
        {
            "life": ONE, "nonce": REF, "spent": SPENT, "lost": (T, 0, 0), "open": (L, 0, 8),
            "wire": (L, 2, 2), "caps": (L, 0, 32), "sdk": (S, 1, 32), "conn": (I, 0, 2**32 - 1),
            "log": (B, 0, 16), "root": (B, 0, 32), "key": (B, 0, 32),
            "refuses": (B, 0, 16),
        },
        "log root key refuses",
    ),
    "welcome": (
        0,
        {
            "hello": REF, "life": ONE, "spent": SPENT, "time": TIME, "wire": (I, 1, 255),
            "caps": (L, 0, 32), "run": ANY, "inline": (I, 0, 32768), "window": (I, 1, 256),
            "quota": ANY, "hold": (I, 1, 8), "cmd": ANY, "runs": (L, 0, 32),
            "region": (S, 0, 64), "note": (S, 1, 512), "path": (B, 0, 2048),
        },
        "runs region note path",
    ),
    "floor": (0, {"hello": REF, "life": ANY}, ""),
    "keys": (
        0,
        {
            "serial": ONE, "sign": (L, 1, 8), "open": (L, 0, 8), "from": (L, 1, 8),
            "until": (L, 1, 8), "min_wire": (I, 1, 255), "roots": (L, 0, 8), "root_min": (I, 1, 8),
            "bundle": (L, 0, 8), "model": (L, 0, 8), "ca": (L, 0, 2),
        },
        "roots root_min bundle model ca",
    ),
    "bundle": (
        0,
        {
            "serial": ONE, "name": (S, 0, 64), "version": (I, 1, 2**31 - 1), "digest": (B, 32, 32),
            "size": (I, 1, 2**23), "spec": REF, "sdk": (S, 1, 32), "method": (S, 1, 16),
            "run": ONE, "shared": (L, 0, 32), "seal": (L, 0, 32), "encs": (L, 0, 32),
            "url": (S, 1, 512), "expires": TIME,
        },
        "seal encs url expires",
    ),
    "model": (
        0,
        {
            "serial": ONE, "run": ONE, "round": ANY, "version": ANY, "phase": (S, 4, 5),
            "part": (S, 1, 16), "spec": REF, "enc": (S, 1, 16), "digest": (B, 32, 32),
            "size": (I, 1, 2**23), "chunk": (I, 1, 32768), "until": TIME, "spread": SPAN,
            "inline": (I, 0, 32768), "share": (F, 0.0, 1.0), "vals": (M, 0, 32), "cohort": REF,
            "deltas": (L, 0, 8), "ahead": (I, 1, 256), "single": (I, 1, 262144),
            "note": (S, 1, 512), "path": (B, 0, 2048), "step": (B, 32, 32),
            "step_size": (I, 1, 2**23), "expires": TIME,
        },
        "vals cohort deltas ahead single note path step step_size expires",
    ),
    "task": (
        1,
        {
            "run": ONE, "round": ANY, "base": ANY, "ask": (S, 1, 16), "spec": REF, "attempt": ANY,
            "step": ANY, "digest": (B, 32, 32), "size": (I, 1, 2**23), "chunk": (I, 1, 32768),
            "vals": (M, 0, 32), "peers": (L, 0, 24), "keys": (L, 0, 24), "weights": (L, 0, 24),
            "enc": (S, 0, 2), "shape": (L, 0, 4), "off": (I, 0, 2**32 - 1),
            "num": (I, 0, 2**32 - 1), "open": (L, 0, 24), "serial": ANY,
        },
        "attempt step digest size chunk vals peers keys weights enc shape off num open serial",
    ),
    "signal": (
        1,
        {
            "run": ONE, "round": ANY, "ask": (S, 1, 16), "attempt": ANY, "step": ANY,
            "enc": (S, 0, 2), "shape": (L, 0, 4), "off": (I, 0, 2**32 - 1),
            "num": (I, 0, 2**32 - 1), "vals": (M, 0, 32),
        },
        "attempt step enc shape off num vals",
    ),
    "part": (1, {"id": REF, "i": (I, 0, 255)}, ""),
    "offer": (
        0,
        {
            "of": (S, 1, 16), "digest": (B, 32, 32), "size": (I, 1, 2**23),
            "chunk": (I, 1, 32768), "sig": (B, 72, 72), "run": ONE, "round": ANY, "base": ANY,
            "spec": REF, "life": ONE, "seq": ONE, "spent": SPENT, "ahead": (I, 1, 256),
        },
        "ahead",
    ),
    "grant": (
        0,
        {"id": REF, "have": (B, 0, 32), "win": (I, 1, 256), "keep": SPAN, "to": (S, 1, 16)},
        "to",
    ),
    "chunk": (1, {"id": REF, "i": (I, 0, 255), "life": ONE, "seq": ONE}, "life seq"),
    "have": (0, {"id": REF, "have": (B, 0, 32), "win": (I, 1, 256)}, ""),
    "receipt": (
        0,
        {"life": ANY, "seq": ONE, "ref": REF, "code": (I, 0, 65535), "run": ANY, "round": ANY},
        "",
    ),
    "refusal": (0, {"code": (I, 0, 65535), "wait": WAIT, "ref": REF, "id": REF}, "ref id"),
    "update": (
        1,
        {
            "run": ONE, "round": ANY, "base": ANY, "life": ONE, "seq": ONE, "spent": SPENT,
            "spec": REF, "part": (S, 1, 16), "enc": (S, 1, 16), "n": ANY, "vals": (M, 0, 32),
            "check": (B, 8, 8), "flags": (I, 0, 2**32 - 1),
        },
        "vals check flags",
    ),
    "peer": (
        1,
        {
            "run": ANY, "epoch": ONE, "step": ANY, "part": (S, 5, 7), "degree": (I, 1, 24),
            "spec": REF, "enc": (S, 2, 2), "off": (I, 0, 2**21 - 1), "num": (I, 1, 8192),
        },
        "",
    ),
    "settle": (0, {"run": ANY, "epoch": ONE, "step": ANY, "used": (T, 0, 0)}, ""),
    "command": (
        0, {"num": ONE, "op": (S, 1, 16), "args": (M, 0, 32), "until": TIME, "root": (B, 0, 1152)},
        "args until root",
    ),
    "metrics": (
        0,
        dict.fromkeys(
            "up sent resent refused bytes_up bytes_down outbox flash rss step mixed missed new".split(),
            ANY,
        ),
        "step mixed missed new",
    ),
    "time": (0, {"serial": ONE, "t": TIME}, ""),
    "weather": (
        1,
        {
            "region": (S, 1, 64), "t": TIME, "start": TIME, "step": (I, 1, 86400000),
            "num": (I, 1, 8192), "names": (L, 1, 8),
        },
        "",
    ),
    "forecast": (
        1,
        {
            "t": TIME, "start": TIME, "step": (I, 1, 86400000), "num": (I, 1, 1024),
            "stream": (S, 0, 64), "model": (S, 0, 64), "bundle": (I, 1, 2**31 - 1), "run": ANY,
            "source": (S, 0, 64), "by": (S, 0, 64), "version": ANY, "error": (F, -REAL, REAL),
            "coverage": (F, 0.0, 1.0),
        },
        "version error coverage",
    ),
    "rollout": (
        0,
        {
            "serial": ONE, "name": (S, 0, 64), "version": (I, 1, 2**31 - 1), "digest": (B, 32, 32),
            "size": (I, 1, 2**23), "served": (B, 32, 32), "salt": REF, "waves": (L, 1, 8),
            "shadow": (F, 0.0, 1.0), "days": (I, 1, 31), "least": (I, 1, 1000000),
            "margin": (F, 0.0, 0.5), "bound": (F, 1e-6, 0.5),
        },
        "",
    ),
    "stage": (0, {"serial": ONE, "of": REF, "phase": (S, 3, 6), "stage": (I, 0, 8)}, ""),
    "trial": (
        0,
        {"of": REF, "state": (S, 5, 8), "day": (I, 0, 2932896), "lost": (L, 0, 7)},
        "",
    ),
    "sums": (0, {"serial": ONE, "contracts": (L, 0, 4)}, ""),
    "sum": (1, {"of": REF, "period": TIME, "enc": (B, 32, 32), "proof": (B, 64, 64)}, ""),
    "sumreceipt": (0, {"of": REF}, ""),
}  # fmt: skip


class Bad(Exception):
    """Refused, with the protocol's word."""


def u(raw, at, size):
    if at + size > len(raw):
        raise Bad("MALFORMED")
    return int.from_bytes(raw[at : at + size], "big"), at + size


def take(raw, at, size):
    if at + size > len(raw):
        raise Bad("MALFORMED")
    return raw[at : at + size], at + size


def read(raw, at, depth):
    """Read one value and return (type, value, next index)."""
    tag, at = u(raw, at, 1)
    if tag < 0x80:
        return I, tag, at
    if 0xCC <= tag <= 0xCF:
        value, at = u(raw, at, 1 << (tag - 0xCC))
        return I, value, at
    if tag in (0xC2, 0xC3):
        return T, tag == 0xC3, at
    if tag == 0xCB:
        data, at = take(raw, at, 8)
        return F, struct.unpack(">d", data)[0], at
    if 0xA0 <= tag < 0xC0 or tag in (0xD9, 0xDA):
        size, at = (tag & 31, at) if tag < 0xC0 else u(raw, at, tag - 0xD8)
        data, at = take(raw, at, size)
        try:
            return S, data.decode(), at
        except UnicodeDecodeError:
            raise Bad("MALFORMED") from None
    if tag in (0xC4, 0xC5, 0xC6):
        size, at = u(raw, at, 1 << (tag - 0xC4))
        data, at = take(raw, at, size)
        return B, data, at
    if 0x90 <= tag < 0xA0 or tag == 0xDC:
        size, at = (tag & 15, at) if tag < 0xA0 else u(raw, at, 2)
        return read_list(raw, at, size, depth)
    if 0x80 <= tag < 0x90 or tag == 0xDE:
        size, at = (tag & 15, at) if tag < 0x90 else u(raw, at, 2)
        return read_map(raw, at, size, depth)
    raise Bad("MALFORMED")


def read_list(raw, at, size, depth):
    if depth == 0 or size > len(raw) - at:
        raise Bad("MALFORMED")
    out = []
    for _ in range(size):
        _, value, at = read(raw, at, depth - 1)
        out.append(value)
    return L, out, at


def read_map(raw, at, size, depth):
    if depth == 0 or size > 40:
        raise Bad("MALFORMED")
    out = {}
    for _ in range(size):
        kind, key, at = read(raw, at, 0)
        if kind is not S or key in out:
            raise Bad("MALFORMED")
        kind, value, at = read(raw, at, depth - 1)
        out[key] = (kind, value)
    return M, out, at


def proof_of(proofs, public):
    """Return the proof of the one key that this decoder knows, of all that the root sends."""
    kid = hashlib.sha256(public).digest()[:8]
    for i in range(0, len(proofs), 72):
        if proofs[i : i + 8] == kid:
            return proofs[i : i + 72]
    raise Bad("UNKNOWN_CLIENT")


def unwrap(raw, kind, sender, recipient, fleet, public, private):
    """Check an envelope in the order of section 3 and return the clear body."""
    if len(raw) > 65536:
        raise Bad("TOO_LARGE")
    if not raw or raw[0] != 0x95:
        raise Bad("MALFORMED")
    at, five = 1, []
    for want in (I, S, S, B, B):
        got, value, at = read(raw, at, 0)
        if got is not want:
            raise Bad("MALFORMED")
        five.append(value)
    wire, said_kind, said_sender, body, proof = five
    most = 16 if said_sender == "_root" else 1
    if at != len(raw) or len(proof) % 72 or not 72 <= len(proof) <= 72 * most:
        raise Bad("MALFORMED")
    if wire != 1:
        raise Bad("UNKNOWN_WIRE")
    if said_kind != kind:
        raise Bad("MALFORMED")
    if said_sender != sender:
        raise Bad("WRONG_SENDER")
    proof = proof_of(proof, public) if sender == "_root" else proof
    check(hashlib.sha256(body).digest(), proof, kind, sender, recipient, fleet, public)
    if body[:1] == b"\x94":
        return decrypted(body, (fleet, kind, sender, recipient), private)
    return body


def decrypted(body, names, private):
    """Decrypt a body by the text of section 4 and RFC 9180, base mode, suite 1."""
    at, four = 1, []
    for want in (I, B, B, B):
        got, value, at = read(body, at, 0)
        if got is not want:
            raise Bad("MALFORMED")
        four.append(value)
    suite, kid, enc, ciphertext = four
    if suite != 1:
        raise Bad("CANNOT_OPEN")
    if at != len(body) or len(kid) != 8 or len(enc) != 32 or len(ciphertext) < 17:
        raise Bad("MALFORMED")
    key = X25519PrivateKey.from_private_bytes(private)
    public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    if hashlib.sha256(public).digest()[:8] != kid:
        raise Bad("CANNOT_OPEN")
    way = "" if names[3] == "_agg" else "/down" if names[2] == "_agg" else "/peer"
    info = f"gridfed/1/hpke{way}\x00".encode()
    info += b"".join(bytes([len(n)]) + n.encode() for n in names)
    kem, suite_id = b"KEM\x00\x20", b"HPKE\x00\x20\x00\x01\x00\x03"
    shared = key.exchange(X25519PublicKey.from_public_bytes(enc))
    shared = expand(extract(b"", kem, b"eae_prk", shared), kem, b"shared_secret", enc + public, 32)
    context = b"\x00" + extract(b"", suite_id, b"psk_id_hash", b"")
    context += extract(b"", suite_id, b"info_hash", info)
    secret = extract(shared, suite_id, b"secret", b"")
    cipher = ChaCha20Poly1305(expand(secret, suite_id, b"key", context, 32))
    nonce = expand(secret, suite_id, b"base_nonce", context, 12)
    try:
        clear = cipher.decrypt(nonce, ciphertext, b"")
    except InvalidTag:
        raise Bad("CANNOT_OPEN") from None
    if clear[:1] != b"\x92":
        raise Bad("MALFORMED")
    return clear


def extract(salt, suite, label, material):
    one = HMAC(salt or bytes(32), SHA256())
    one.update(b"HPKE-v1" + suite + label + material)
    return one.finalize()


def expand(key, suite, label, info, size):
    labelled = struct.pack(">H", size) + b"HPKE-v1" + suite + label + info
    return HKDFExpand(SHA256(), size, labelled).derive(key)


def unmasked(contract, said, fleet, device, public, private):
    """Remove the mask of a device's numbers as a witness and an aggregator could together."""
    at, names = hashlib.sha256(contract).digest(), b""
    if said["of"] != at[:16]:
        raise Bad("NOT_FOUND")
    for part in (fleet, device):
        names += bytes([len(part)]) + part.encode()
    about = names + at + struct.pack(">Q", said["period"])
    signed = b"gridfed/1/sum\x00" + about + said["enc"] + hashlib.sha256(said["blob"]).digest()
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(said["proof"], signed)
    except InvalidSignature:
        raise Bad("BAD_SIGNATURE") from None
    key = X25519PrivateKey.from_private_bytes(private)
    own = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    agreed = key.exchange(X25519PublicKey.from_public_bytes(said["enc"]))
    kem, suite = b"KEM\x00\x20", b"HPKE\x00\x20\x00\x01\x00\x03"
    shared = expand(
        extract(b"", kem, b"eae_prk", agreed), kem, b"shared_secret", said["enc"] + own, 32
    )
    bound = b"\x00" + extract(b"", suite, b"psk_id_hash", b"")
    bound += extract(b"", suite, b"info_hash", b"gridfed/1/sum seed\x00" + about)
    exporter = expand(extract(shared, suite, b"secret", b""), suite, b"exp", bound, 32)
    seed = expand(exporter, suite, b"sec", b"gridfed/1/sum mask", 32)
    stream = Cipher(algorithms.ChaCha20(seed, bytes(16)), None).encryptor()
    size = len(said["blob"]) // 8
    mask = struct.unpack(f"<{size}Q", stream.update(bytes(8 * size)))
    sent = struct.unpack(f"<{size}Q", said["blob"])
    return [(a - b) % 2**64 for a, b in zip(sent, mask, strict=True)]


def check(digest, proof, kind, sender, recipient, fleet, public):
    said = b"gridfed/1/sig\x00"
    for part in (fleet, kind, sender, recipient):
        said += bytes([len(part)]) + part.encode()
    try:
        if len(public) == 33:
            p256(public, proof[8:], said + digest)
        else:
            Ed25519PublicKey.from_public_bytes(public).verify(proof[8:], said + digest)
    except InvalidSignature:
        raise Bad("BAD_SIGNATURE") from None
    if proof[:8] != hashlib.sha256(public).digest()[:8]:
        raise Bad("BAD_SIGNATURE")


def p256(public, signature, said):
    """Verify r || s by section 1; of the two s that are valid, only the smaller one counts."""
    n = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
    if not 1 <= r < n or not 1 <= s <= n // 2:
        raise InvalidSignature
    key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), public)
    key.verify(encode_dss_signature(r, s), said, ec.ECDSA(SHA256()))


def signing_key(raw):
    """Check the size of a device's key, and that one of 33 bytes is a point of P-256."""
    if len(raw) not in (32, 33):
        raise Bad("MALFORMED")
    if len(raw) == 33:
        try:
            ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), raw)
        except ValueError:
            raise Bad("MALFORMED") from None
        if raw[0] not in (2, 3):
            raise Bad("MALFORMED")


def parse(kind, body):
    """Read a body by the table of section 5; return what it says, with the blob."""
    if kind not in TABLE:
        raise Bad("UNKNOWN_KIND")
    with_blob, keys, optional = TABLE[kind]
    if body[:1] != b"\x92":
        raise Bad("MALFORMED")
    what, header, at = read(body, 1, 3)
    if what is not M or at > 1 + 4096:
        raise Bad("MALFORMED")
    what, blob, at = read(body, at, 0)
    if what is not B or at != len(body) or (blob and not with_blob):
        raise Bad("MALFORMED")
    for key in header:
        if key not in keys and key[:1].isupper():
            raise Bad("UNKNOWN_FIELD")
    out = known(kind, header, keys, optional.split())
    if with_blob:
        out["blob"] = blob
    together(kind, keys, out, blob)
    return out


def together(kind, keys, said, blob):
    """Check fields that depend on each other."""
    if kind in ("weather", "forecast"):
        columns_of(said, blob)
    if kind == "rollout":
        rollout_of(said)
    sizes = len(said.get("log", b"")), len(said.get("root", b""))
    if kind == "hello" and sizes not in ((0, 0), (16, 32)):
        raise Bad("MALFORMED")
    pair = len(said.get("refuses", b""))
    if kind == "hello" and (len(said.get("key", b"")) not in (0, 32) or pair not in (0, 16)):
        raise Bad("MALFORMED")
    for key in said.get("keys", ()) if kind == "task" else ():
        signing_key(key)
    if kind == "task" and said.get("open"):
        lengths = {len(one) for one in said["open"]}
        if not lengths <= {0, 32} or len(said["open"]) != len(said.get("peers", ())):
            raise Bad("MALFORMED")
    if "shape" in keys and (kind == "signal" or said.get("shape")):
        rows(said, blob)


def columns_of(said, blob):
    """Check the columns of weather, or of a forecast, which has three."""
    if "cells" in said:
        if len(blob) != {"k-ary": 1, "unary": -(-said["cells"] // 8)}.get(said["how"]):
            raise Bad("MALFORMED")
        return
    names = said.get("names", "123")
    if len(blob) != 4 * len(names) * said["num"] or len(set(names)) != len(names):
        raise Bad("MALFORMED")
    if "names" in said and said["num"] * said["step"] > 400 * 86400000:
        raise Bad("MALFORMED")


def rollout_of(said):
    """Check that waves rise, and that the version is not the served one."""
    waves = [0.0, *said["waves"]]
    if waves != sorted(set(waves)) or waves[-1] > 1.0:
        raise Bad("MALFORMED")
    if said["digest"] == said["served"]:
        raise Bad("MALFORMED")


def logged(said, bundle, fleet, public):
    """Verify the checkpoint and the proof of a manifest by section 7; return size and both roots."""
    text, _, signature = said["note"].partition("\n\n")
    origin, size, root = text.split("\n")
    if origin != f"gridfed-log/1/{fleet}/{said['run']}":
        raise Bad("MALFORMED")
    dash, name, encoded = signature.rstrip("\n").split(" ")
    key = base64.b64decode(encoded)
    wanted = hashlib.sha256(origin.encode() + b"\n\x01" + public).digest()[:4]
    if dash != "\u2014" or name != origin or key[:4] != wanted:
        raise Bad("BAD_SIGNATURE")
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(key[4:], f"{text}\n".encode())
    except InvalidSignature:
        raise Bad("BAD_SIGNATURE") from None
    terms = [said["spec"], said.get("cohort", b""), struct.pack(">d", said["share"])]
    for name, value in sorted(said.get("vals", {}).items()):
        terms += [name.encode(), struct.pack(">d", value)]
    terms = b"".join(bytes([len(part)]) + part for part in terms)
    leaf = b"\x00gridfed/1/leaf\x00"
    for word in ("run", "round", "version", "serial"):
        leaf += struct.pack(">Q", said[word])
    leaf += said["digest"] + bundle + hashlib.sha256(b"gridfed/1/terms\x00" + terms).digest()
    after, before, rest = hashlib.sha256(leaf).digest(), b"", said["path"]
    if len(rest) % 32 or len(rest) // 32 != (int(size) - 1).bit_count():
        raise Bad("MALFORMED")
    for i in range(0, len(rest), 32):
        one = rest[i : i + 32]
        before = hashlib.sha256(b"\x01" + one + before).digest() if before else one
        after = hashlib.sha256(b"\x01" + one + after).digest()
    if after != base64.b64decode(root):
        raise Bad("BAD_DIGEST")
    return int(size), before or hashlib.sha256(b"").digest(), after


def known(kind, header, keys, optional):
    """Return what the table knows of a header, each of its type and size."""
    out = {}
    for key, (want, lowest, highest) in keys.items():
        if key not in header:
            if key not in optional:
                raise Bad("MALFORMED")
            continue
        got, value = header[key]
        if got is not want:
            raise Bad("MALFORMED")
        amount = value if want in (I, F) else 0 if want is T else len(value)
        if not lowest <= amount <= highest:
            raise Bad("MALFORMED")
        if (
            want is M
            and kind != "update"
            and not all(-REAL <= v <= REAL for _, v in value.values())
        ):
            raise Bad("MALFORMED")
        if key in ("from", "until") and want is L and not all(0 <= v <= TIME[2] for v in value):
            raise Bad("MALFORMED")
        if key == "weights" and not all(-REAL <= v <= REAL for v in value):
            raise Bad("MALFORMED")
        out[key] = {k: v for k, (_, v) in value.items()} if want is M else value
    return out


def rows(said, blob):
    """Check a piece of an array by section 10."""
    shape, enc = said.get("shape") or [], said.get("enc", "")
    off, num = said.get("off", 0), said.get("num", 0)
    if not shape:
        if enc or off or num or blob:
            raise Bad("MALFORMED")
        return
    size = {"f4": 4, "f2": 2, "i4": 4}.get(enc, 0)
    for n in shape:
        if not 1 <= n <= 1048576:
            raise Bad("MALFORMED")
    for n in shape[1:]:
        size *= n
    if not 0 < size <= 32768 or num < 1 or off + num > shape[0] or len(blob) != num * size:
        raise Bad("MALFORMED")


def tensor(blob, enc, size):
    """Read a vector by the table of section 6."""
    if enc == "f4":
        return expect(blob, 4 * size) or list(struct.unpack(f"<{size}f", blob))
    if enc == "f2":
        return expect(blob, 2 * size) or list(struct.unpack(f"<{size}e", blob))
    if enc == "i1":
        blocks = (size + 1023) // 1024
        expect(blob, 4 * blocks + size)
        scales = struct.unpack_from(f"<{blocks}f", blob)
        steps = struct.unpack_from(f"<{size}b", blob, 4 * blocks)
        return [scales[i // 1024] * step for i, step in enumerate(steps)]
    if enc == "b1":
        expect(blob, (size + 7) // 8)
        return [1.0 if blob[i // 8] >> (i % 8) & 1 else -1.0 for i in range(size)]
    if enc == "b2":
        expect(blob, (size + 3) // 4)
        return [{0: 0.0, 1: 1.0, 3: -1.0}[blob[i // 4] >> 2 * (i % 4) & 3] for i in range(size)]
    if enc in ("q8", "q4"):
        blocks = (size + 63) // 64
        expect(blob, 2 * blocks + (size if enc == "q8" else (size + 1) // 2))
        scales, rest = struct.unpack_from(f"<{blocks}e", blob), blob[2 * blocks :]
        if enc == "q8":
            steps = struct.unpack(f"<{size}b", rest)
        else:
            halves = [rest[i // 2] >> 4 * (i % 2) & 15 for i in range(size)]
            steps = [half - 16 if half > 7 else half for half in halves]
        return [scales[i // 64] * step for i, step in enumerate(steps)]
    kept = struct.unpack_from("<I", blob)[0]
    expect(blob, 4 + 8 * kept)
    out = [0.0] * size
    where = struct.unpack_from(f"<{kept}I", blob, 4)
    for i, value in zip(where, struct.unpack_from(f"<{kept}f", blob, 4 + 4 * kept), strict=True):
        out[i] = value
    return out


def after_step(manifest, body, base):
    """Return the float32 model of a manifest from the body of its step and the version before."""
    if hashlib.sha256(body).digest() != manifest["step"] or len(body) != manifest["step_size"]:
        raise Bad("BAD_DIGEST")
    _, header, at = read(body, 1, 3)
    what, blob, at = read(body, at, 0)
    wanted = {"part": "step", "enc": "q8"} | {k: manifest[k] for k in ("run", "version", "spec")}
    if (
        body[:1] != b"\x92"
        or what is not B
        or at != len(body)
        or {k: v for k, (_, v) in header.items()} != wanted
    ):
        raise Bad("MALFORMED")
    moved = [x + step for x, step in zip(base, tensor(blob, "q8", len(base)), strict=True)]
    floats = struct.pack(f"<{len(moved)}f", *moved)
    whole = {**wanted, "part": "shared", "enc": "f4"}
    if hashlib.sha256(b"\x92\x85" + pairs(whole) + packed(floats)).digest() != manifest["digest"]:
        raise Bad("BAD_DIGEST")
    return list(struct.unpack(f"<{len(moved)}f", floats))


def pairs(header):
    """Write the pairs of a short map in the order of their keys."""
    return b"".join(packed(key) + packed(header[key]) for key in sorted(header))


def packed(value):
    """Write a short text, bytes, or a whole number that is not negative."""
    if isinstance(value, str):
        return bytes([0xA0 + len(value)]) + value.encode()
    if isinstance(value, bytes):
        head = struct.pack(">BB", 0xC4, len(value)) if len(value) < 256 else b""
        return (head or struct.pack(">BI", 0xC6, len(value))) + value
    if value < 128:
        return bytes([value])
    return struct.pack(">BI", 0xCE, value)


def expect(blob, size):
    if len(blob) != size:
        raise Bad("WRONG_SIZE")
