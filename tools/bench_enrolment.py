"""Measure the enrolments a second of `ca serve` on a core, the encryption of an update, and lists of keys.

    python -m tools.bench_enrolment --devices 1000

Devices enrol over HTTPS with one-time passwords, each once, from other processes. The figure is of the
server's processor time: TLS handshake, proof of identity, certificate, and the transaction on the disk.
A list of keys is verified as a device does, for a root of one key and for roots of several.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from aggregator.extensions.authority import enrolment, folder
from aggregator.extensions.authority.enrolment import (
    Credentials,
    EnrolmentAuthority,
    EnrolmentPolicy,
)
from aggregator.extensions.authority.est_server import EstServer
from aggregator.extensions.authority.est_service import EstService
from aggregator.extensions.authority.record import opened
from edge_sdk.extensions.certificates.certificate_request import certificate_request, new_tls_key
from edge_sdk.extensions.certificates.est_client import EstServerAddress, request_certificate
from edge_sdk.extensions.encryption.encrypted_body import (
    BodyContext,
    decrypted_body,
    encrypted_body,
)
from edge_sdk.extensions.encryption.hpke import DecryptionKey
from edge_sdk.protocol import envelope, keys
from edge_sdk.protocol.root_keys import RootKeys

FLEET = "north"
Request = tuple[str, str, bytes]
"""Name of a device, its password, and its certificate request."""


def now() -> datetime:
    """Return the present time, to the second."""
    return datetime.now(UTC).replace(microsecond=0)


def listed(place: Path, devices: int) -> list[Request]:
    """Create an authority, list devices, and return a request of each."""
    begun = now()
    folder.create(place, "benchmark", begun, timedelta(days=3650))
    names = [f"meter-{number}" for number in range(devices)]
    with opened(place) as record:
        until = begun + timedelta(days=1)
        words = enrolment.list_serials(record, [(name, name, "") for name in names], until)
    return [
        (name, word, certificate_request(new_tls_key(), FLEET, name, keys.generate()))
        for _, name, word in words
    ]


def send(url: str, authority: Path, requests: list[Request]) -> None:
    """Enrol devices one after the other."""
    address = EstServerAddress(url, authority)
    for name, word, der in requests:
        request_certificate(address, der, is_renewal=False, user=name, password=word)


def over_https(place: Path, requests: list[Request], clients: int) -> dict[str, float]:
    """Enrol devices from several processes; return the server's processor time and the time in all."""
    server = EstServer(
        ("127.0.0.1", 0), EstService(place, EnrolmentPolicy(FLEET)), ["localhost", "127.0.0.1"]
    )
    stopping = threading.Event()
    thread = threading.Thread(target=server.run, args=(stopping.is_set,))
    thread.start()
    url, certificate = f"https://localhost:{server.server_address[1]}", place / "ca.pem"
    spawned = multiprocessing.get_context("spawn")
    workers = [
        spawned.Process(target=send, args=(url, certificate, requests[n::clients]))
        for n in range(clients)
    ]
    used, begun = time.process_time(), time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    used, begun = time.process_time() - used, time.perf_counter() - begun
    stopping.set()
    thread.join()
    with opened(place) as record:
        members = len(record.members())
    if members != len(requests):
        raise SystemExit(f"{members} of {len(requests)} devices were enrolled")
    return {"processor seconds": used, "seconds": begun}


def decided(place: Path, requests: list[Request]) -> float:
    """Return the processor time of the decisions alone, without HTTPS."""
    with opened(place) as record:
        authority = EnrolmentAuthority(record, folder.load_folder(place), EnrolmentPolicy(FLEET))
        used = time.process_time()
        for name, word, der in requests:
            authority.enrol(der, Credentials(name, word), now())
        return time.process_time() - used


def processor_time(do: Callable[[], object], seconds: float = 2.0) -> dict[str, float]:
    """Return the median and the least processor time of many runs, in milliseconds."""
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        begun = time.thread_time()
        do()
        times.append(1e3 * (time.thread_time() - begun))
    return {"median ms": float(np.median(times)), "least ms": min(times)}


def sealing(sizes: list[int]) -> dict[str, Any]:
    """Return the time to encrypt a body of each size to the aggregator, and to decrypt it there."""
    key = DecryptionKey.generate()
    context = BodyContext(FLEET, "update", "meter-1", "_agg")
    keys_of = {key.kid: key}.get
    found = {}
    for size in sizes:
        body = b"\x92" + bytes(size - 1)
        sealed = encrypted_body(body, key.public, context)
        found[f"{size} bytes"] = {
            "encrypt": processor_time(partial(encrypted_body, body, key.public, context)),
            "decrypt": processor_time(partial(decrypted_body, sealed, keys_of, context)),
        }
    return found


def _key_of_root(root: RootKeys, _sender: str, kid: bytes) -> bytes | None:
    return root.key(kid)


def verification(roots: list[tuple[int, int]]) -> dict[str, Any]:
    """Return the bytes of proof of a list of keys and the time to verify it, for each root."""
    kind, sender, recipient = "keys", envelope.ROOT, envelope.ALL
    signers = [keys.from_seed(bytes([number]) * 32) for number in range(1, 9)]
    found = {}
    for threshold, count in roots:
        root = RootKeys(tuple(key.public for key in signers[:count]), threshold)
        first, *also = signers[:threshold]
        raw = envelope.seal(
            b"\x92\x80\xc4\x00",
            kind=kind,
            sender=sender,
            recipient=recipient,
            fleet=FLEET,
            signer=first,
            also=also,
        )
        verify = partial(
            envelope.unseal,
            raw,
            kind=kind,
            sender=sender,
            recipient=recipient,
            fleet=FLEET,
            key_of=partial(_key_of_root, root),
            is_enough=root.is_enough,
        )
        name = f"{threshold} of {count}"
        found[name] = {"bytes of proof": len(verify().proof), **processor_time(verify)}
    return found


def main() -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=4, help="processes that enrol devices")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        whole = over_https(Path(place) / "a", listed(Path(place) / "a", args.devices), args.clients)
        alone = decided(Path(place) / "b", listed(Path(place) / "b", args.devices))
    found = {
        "devices": args.devices,
        "over HTTPS": whole | {"a second on a core": args.devices / whole["processor seconds"]},
        "decisions alone": {
            "processor seconds": alone,
            "a second on a core": args.devices / alone,
        },
        "encryption of an update": sealing([1_000, 8_000, 32_000, 600_000]),
        "verification of a list of keys": verification([(1, 1), (2, 3), (5, 8)]),
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
