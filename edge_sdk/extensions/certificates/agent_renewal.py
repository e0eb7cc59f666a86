"""Let a running agent renew the certificate of its device."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

from edge_sdk.agent import SourceHealth
from edge_sdk.client import Client
from edge_sdk.config import Config
from edge_sdk.errors import WireError
from edge_sdk.extensions.certificates.certificate_files import CertificateFiles
from edge_sdk.extensions.certificates.certificate_renewal import CertificateRenewal
from edge_sdk.extensions.certificates.followed_authorities import FollowedAuthorities
from edge_sdk.extensions.certificates.renewal_schedule import NOTE, RenewalFailure, summary
from edge_sdk.extensions.certificates.section import ca_of
from edge_sdk.link.tls_files import qualified
from edge_sdk.link.transport import RenewableLink
from edge_sdk.store.store import DeviceStore


class AgentRenewal:
    """The renewal of one agent; does nothing on a link without TLS."""

    def __init__(self, config: Config, clients: Sequence[Client], _sources: SourceHealth) -> None:
        self._client, self._renewal = clients[0], renewal_of(config, clients[0])

    @staticmethod
    def prepare(config: Config) -> None:
        """Complete the files of the certificate; the link is not made yet."""
        restore_certificate(config)

    def turn(self) -> None:
        """Run the due work."""
        if self._renewal is not None:
            self._renewal.turn(self._client.now)

    def close(self) -> None:
        """Do nothing."""

    def status(self) -> dict[str, object]:
        return {} if self._renewal is None else self._renewal.status()


def restore_certificate(config: Config) -> None:
    """Complete the files of a certificate that the device renews, if one is missing or damaged.

    What cannot be restored is reported when the link is made.
    """
    if ca_of(config).url and config.broker.cert_file is not None:
        with suppress(OSError, WireError):
            CertificateFiles(config.broker.cert_file).restore()


def renewal_of(config: Config, client: Client) -> CertificateRenewal | None:
    """Return the renewal of the device's certificate; None without an EST server or TLS."""
    link, file = client.link, config.broker.cert_file
    is_tls = config.broker.url.startswith("mqtts:")
    if not (ca_of(config).url and is_tls and file is not None and isinstance(link, RenewableLink)):
        return None

    def prepare() -> Callable[[], object]:
        signed_time = client.server_clock.certificate_time()
        earliest = client.server_clock.earliest_certificate_time()
        signer, former = client.identity.replacement.for_request()

        def request() -> None:
            from edge_sdk.extensions.certificates.certificate_enrolment import (  # noqa: PLC0415 - loads HTTP, only to renew
                Enrolment,
            )

            Enrolment(config, ca_of(config).url, signer, signed_time, former, earliest).request(
                is_renewal=True
            )

        return request

    files, wall = CertificateFiles(file), client.server_clock.best_time
    followed = FollowedAuthorities.of(config.state, config.fleet)

    def is_ordered() -> bool:
        is_request_due = client.identity.replacement.is_request_due
        return is_request_due or followed.is_renewal_due(files.present(), time.time())

    def record_issued() -> None:
        client.identity.replacement.record_issued()
        followed.record_issued(files.received(), time.time())

    return CertificateRenewal(
        config.id,
        qualified(config.fleet, config.id) if ca_of(config).shared else config.id,
        files,
        link,
        wall,
        prepare,
        lambda note: client.remember({NOTE: note}),
        Random(secrets.randbits(64)),  # noqa: S311 - spreads load, hides nothing
        RenewalFailure.read(client.remembered(NOTE)),
        is_ordered=is_ordered,
        record_issued=record_issued,
    )


def saved_status(config: Config, store: DeviceStore) -> dict[str, Any]:
    """Return the state of a certificate that the device renews; empty without one."""
    file = config.broker.cert_file
    if file is None:
        return {}
    files, now = CertificateFiles(file), max(time.time(), store.fact("floor") / 1000)
    present, failure = files.present(), RenewalFailure.read(store.paper(f"source {NOTE}"))
    span = None if present is None else (present.since, present.until)
    name = "" if present is None else present.name
    is_unconfirmed = files.previous.exists()
    found = summary(config.id, name, span, now, failure, is_unconfirmed=is_unconfirmed)
    return {"certificate renewal": found}
