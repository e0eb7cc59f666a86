"""An authority, its server and a client for tests of enrolment over EST."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from aggregator.extensions.authority import enrolment
from aggregator.extensions.authority import folder as authority
from aggregator.extensions.authority.enrolment import EnrolmentPolicy
from aggregator.extensions.authority.est_server import EstServer
from aggregator.extensions.authority.est_service import EstService
from aggregator.extensions.authority.record import opened
from edge_sdk.extensions.certificates.certificate_request import certificate_request, new_tls_key
from edge_sdk.protocol import keys

FLEET = "north"
NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


def made_authority(folder, now=NOW):
    authority.create(folder, "test", now, timedelta(days=3650))
    return folder


def password_of(folder, serial, name="", labels="", until=NOW + timedelta(days=30)):
    with opened(folder) as record:
        ((_, _, word),) = enrolment.list_serials(record, [(serial, name or serial, labels)], until)
    return word


class Device:
    """Keys of a device, and requests of it."""

    def __init__(self, name, *, fleet=FLEET, seed=None, kind="ed25519"):
        self.name, self.fleet = name, fleet
        self.identity = (
            keys.generate_device_key(kind) if seed is None else keys.from_seed(bytes([seed]) * 32)
        )
        self.tls = new_tls_key()

    def request(self, *, name="", key=None, former=None):
        return certificate_request(
            key or self.tls, self.fleet, name or self.name, self.identity, former=former
        )


@contextmanager
def serving(folder, *, deliver=lambda _members: None, root=str, clock=None, policy=None):
    """Run the server in a thread; its clock is the machine's, for TLS has the machine's too."""
    policy = policy or EnrolmentPolicy(FLEET)
    more = {} if clock is None else {"clock": clock}
    service = EstService(folder, policy, root, deliver, **more)
    server = EstServer(("127.0.0.1", 0), service, ["127.0.0.1", "localhost"])
    stopping = threading.Event()
    thread = threading.Thread(target=server.run, args=(stopping.is_set,))
    thread.start()
    server.url = f"https://localhost:{server.server_address[1]}"
    try:
        yield server
    finally:
        stopping.set()
        thread.join()
