"""Checks of a device's messages: signed to the last bit, and encrypted in transit."""

from __future__ import annotations

import datetime as dt
import socket
import ssl
import threading
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from edge_sdk.errors import Refused
from edge_sdk.link.broker_options import Broker, tls_context
from edge_sdk.protocol import envelope, keys
from edge_sdk.protocol.codec import decode, encode, pack_tensor
from edge_sdk.protocol.messages import UpdateMessage

KEY = keys.generate()


class _Way(TypedDict):
    kind: str
    sender: str
    recipient: str
    fleet: str


_WAY: _Way = {"kind": "update", "sender": "meter-0042", "recipient": "_agg", "fleet": "north"}


class Wrong(Exception):  # noqa: N818 - what a check has found, as a sentence
    """A check that failed."""


def update(size: int = 5760) -> UpdateMessage:
    """Return an update with the length of the shared layers of ``load-lstm-week``."""
    return UpdateMessage(
        run=1,
        round=2,
        base=1,
        life=3,
        seq=4,
        spent=4,
        spec=bytes(16),
        part="delta",
        enc="f4",
        n=64,
        vals={"loss": 0.5},
        blob=pack_tensor(np.linspace(-1.0, 1.0, size, dtype=np.float32), "f4"),
    )


def sealed(said: UpdateMessage) -> bytes:
    return envelope.seal(encode(said), signer=KEY, **_WAY)


def unsealed(raw: bytes) -> UpdateMessage:
    """Verify the signature of an update, and decode it.

    Raises:
        Refused: Nobody we know has signed these bytes.
    """
    proved = envelope.unseal(raw, key_of=lambda *_: KEY.public, decrypt=None, **_WAY)
    return decode(UpdateMessage, proved.body)


def signing(_: Path) -> str:
    """Check that a signed update verifies, and that it does not with one bit flipped."""
    said, raw = update(), bytearray(sealed(update()))
    if unsealed(bytes(raw)) != said:
        raise Wrong("another update came out")
    raw[len(raw) // 2] ^= 1
    try:
        unsealed(bytes(raw))
    except Refused as refused:
        return f"an update of {len(raw)} bytes; with one bit turned: {refused.reason.name}"
    raise Wrong("an update with one bit turned was believed")


def encryption(folder: Path) -> str:
    """Check that an update crosses a mutual TLS connection with the SDK's settings."""
    file, key = _certificate(folder)
    broker = Broker(url="mqtts://localhost", client_id="meter-0042", ca_file=file)
    ours = tls_context(replace(broker, cert_file=file, key_file=key))
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(file, key)
    theirs.load_verify_locations(file)
    theirs.verify_mode = ssl.CERT_REQUIRED
    near, far = socket.socketpair()
    raw = sealed(update())
    with near, far:
        far_end = threading.Thread(target=_echo, args=(theirs, far, len(raw)), daemon=True)
        far_end.start()
        with ours.wrap_socket(near, server_hostname="localhost") as link:
            link.sendall(raw)
            back, cipher = _received(link, len(raw)), link.cipher() or ("none", "none", 0)
        far_end.join(10.0)
    if unsealed(back) != update() or cipher[1] != "TLSv1.3":
        raise Wrong(f"{len(back)} of {len(raw)} bytes came back by {cipher[1]}")
    return f"{len(raw)} bytes there and back by {cipher[1]}, {cipher[0]}; both ends proved"


def _received(link: ssl.SSLSocket, size: int) -> bytes:
    got = b""
    while len(got) < size and (more := link.recv(size - len(got))):
        got += more
    return got


def _echo(context: ssl.SSLContext, end: socket.socket, size: int) -> None:
    with context.wrap_socket(end, server_side=True) as link:
        link.sendall(_received(link, size))


def _certificate(folder: Path) -> tuple[Path, Path]:
    """Make a self-signed certificate on P-256."""
    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    hour, names = dt.timedelta(hours=1), x509.SubjectAlternativeName([x509.DNSName("localhost")])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - hour)
        .not_valid_after(now + hour)
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    files, form = (folder / "tls.pem", folder / "tls.key"), serialization.Encoding.PEM
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    files[0].write_bytes(made.public_bytes(form))
    files[1].write_bytes(key.private_bytes(form, *plain))
    return files
