"""Enrol a device with an EST server, and renew its certificate: every step may be repeated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from edge_sdk.config import Config
from edge_sdk.errors import ConfigError
from edge_sdk.extensions.certificates.authority_certificates import certificates_of, digest_of
from edge_sdk.extensions.certificates.certificate_files import CertificateFiles
from edge_sdk.extensions.certificates.certificate_request import (
    IssuedToDevice,
    certificate_request,
    fingerprint,
)
from edge_sdk.extensions.certificates.est_client import (
    EstServerAddress,
    pinned_authority,
    request_certificate,
    root_public_key,
)
from edge_sdk.extensions.certificates.followed_authorities import trusted_digests
from edge_sdk.extensions.certificates.section import ca_of
from edge_sdk.link.tls_files import qualified
from edge_sdk.protocol.keys import Signer, write_atomically
from edge_sdk.protocol.root_keys import parse_root, read_root

PIN = "sha256:"
"""Prefix of an authority that is given by its digest."""


@dataclass(frozen=True, slots=True)
class Enrolment:
    """Request certificates for one device, and store the answers."""

    config: Config
    url: str  # address of the EST server
    signer: Signer  # identity key of the device
    signed_time: float | None = None  # time from the aggregator, Unix seconds; None without one
    former: Signer | None = None  # identity key that ``signer`` is to replace; None without one
    # earliest moment that the present time may be, Unix seconds, while it is not known for certain;
    # a renewal contains no secret, and is sent to a server whose certificate ends later
    earliest: float | None = None

    @property
    def files(self) -> CertificateFiles:
        named = self.config.broker.cert_file
        if named is None:
            raise ConfigError(
                "broker.cert_file: missing; the certificate is stored there",
                hint='cert_file = "tls.pem" and key_file = "tls.pem" in [broker]',
            )
        return CertificateFiles(named)

    @property
    def authority_file(self) -> Path:
        named = ca_of(self.config).ca_file or self.config.broker.ca_file
        if named is None:
            raise ConfigError("broker.ca_file: missing; the authority is stored there")
        return named

    @property
    def _authority_files(self) -> list[Path]:
        path = self.authority_file
        return list(dict.fromkeys((path, self.config.broker.ca_file or path)))

    @property
    def address(self) -> EstServerAddress:
        return EstServerAddress(self.url, self.authority_file, self.signed_time)

    @property
    def name(self) -> str:
        config = self.config
        return qualified(config.fleet, config.id) if ca_of(config).shared else config.id

    def trust(self, pin: str) -> None:
        """Store the authority that the operator has given: a PEM file, or ``sha256:`` and its digest.

        Raises:
            ConfigError: No authority is given or stored, or another one is stored already.
            EstError: The server has another authority.
        """
        path = self.authority_file
        if not pin:
            if not path.exists():
                raise ConfigError(
                    f"{path}: file not found: the server could be anybody's",
                    hint="give its authority: --ca FILE, or --ca sha256:DIGEST as printed by ca serve",
                )
            return
        if pin.startswith(PIN):
            pem = pinned_authority(self.address, pin.removeprefix(PIN).replace(":", ""))
        else:
            pem = Path(pin).read_bytes()
        known = certificates_of(path.read_bytes()) if path.exists() else []
        if known and fingerprint(pem) not in map(digest_of, known):
            raise ConfigError(
                f"{path}: holds another authority than --ca", hint=f"remove {path} to replace it"
            )
        for file in self._authority_files:
            if not file.exists():
                write_atomically(file, pem, 0o644)

    def request(self, *, is_renewal: bool, password: str = "", serial: str = "") -> IssuedToDevice:
        """Request a certificate for a new key, and store both beside the present ones.

        A certificate that was received before a power cut is returned without a request.

        Raises:
            EstError: The server refuses, asks to wait, or cannot be reached.
        """
        files, config = self.files, self.config
        if self.former is None and (found := files.received()):
            return found
        key = files.pending_key()
        der = certificate_request(
            key,
            config.fleet,
            config.id,
            self.signer,
            former=self.former,
            is_shared=ca_of(config).shared,
        )
        address = replace(self.address, earliest=self.earliest if is_renewal else None)
        present = files.path if is_renewal and files.present() else None
        user = (serial or config.id) if password else ""
        answer = request_certificate(
            address,
            der,
            is_renewal=is_renewal,
            user=user,
            password=password,
            certificate=present,
            trusted=trusted_digests(self._authority_files),
        )
        return files.receive(answer, self.name)

    def fetch_root(self) -> str:
        """Store the fleet's root public key, if the configuration names a file that is missing.

        Returns:
            What was stored, or a warning if the file has another root than the server; empty if the
            file is right, or the server has no root key.

        Raises:
            EstError: The server cannot be reached, or cannot say which root is the fleet's.
        """
        path = self.config.keys.root
        if path is None:
            return ""
        text = root_public_key(self.address)
        if not text:
            return ""
        root = parse_root(text, self.url)
        if path.exists():
            present = read_root(path)
            return "" if present == root else (
                f"warning: {path} holds root key {present.name}, and the server's fleet has {root.name}: "
                "this device refuses the fleet's announcements, unless the root was rotated and it "
                f"follows; if the server's is right, delete {path} and give this command again"
            )  # fmt: skip
        if not path.parent.exists():
            path.parent.mkdir(parents=True)
        write_atomically(path, root.text.encode(), 0o644)
        return f"{path}: root public key of the fleet"
