"""Keep a device's TLS key and certificate in one file, and replace both in one step.

Three files stand beside each other: the present one, ``.next`` while a certificate is being
requested, and ``.previous`` until a broker has accepted the new one; for a moment also ``.exchanged``,
while the present and the previous one change places. Each step is one atomic rename or write, and may
be repeated after a power cut.
"""

from __future__ import annotations

import ssl
from functools import lru_cache
from pathlib import Path

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.app.permissions import require_private
from edge_sdk.extensions.certificates.certificate_request import (
    CertificateAnswerError,
    IssuedToDevice,
    described,
    issued_for,
    new_tls_key,
)
from edge_sdk.protocol.keys import write_atomically

_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """The files of one device's TLS key and certificate."""

    path: Path  # the present file: private key, then certificate, PEM, mode 0600

    @property
    def next(self) -> Path:
        return self.path.with_name(f"{self.path.name}.next")

    @property
    def previous(self) -> Path:
        """Return the path of the file that was in use before."""
        return self.path.with_name(f"{self.path.name}.previous")

    @property
    def exchanged(self) -> Path:
        """Return the path of the copy that makes an exchange of two files safe from a power cut."""
        return self.path.with_name(f"{self.path.name}.exchanged")

    def present(self) -> IssuedToDevice | None:
        """Return the present certificate; None without one that can be read."""
        return _read(self.path)

    def pending_key(self) -> bytes:
        """Return the key of the next certificate, PEM; it is on the disk before it is used.

        A key from before a power cut is used again: the server answers a repeated request alike.
        """
        try:
            found = self.next.read_bytes()
        except FileNotFoundError:
            found = b""
        else:
            require_private(self.next)
        if found.startswith(b"-----BEGIN PRIVATE KEY-----"):
            return found.partition(_CERTIFICATE)[0]
        key = new_tls_key()
        write_atomically(self.next, key, 0o600)
        return key

    def received(self) -> IssuedToDevice | None:
        return _read(self.next)

    def former(self) -> IssuedToDevice | None:
        """Return the certificate of the previous file; None without one that can be read."""
        return _read(self.previous)

    def receive(self, certificates: list[bytes], name: str) -> IssuedToDevice:
        """Store the certificate of the pending key.

        Raises:
            CertificateAnswerError: None is of this key, or it names another device.
        """
        key = self.pending_key()
        issued = issued_for(key, certificates, name)
        write_atomically(self.next, key + issued.pem, 0o600)
        return issued

    def install(self) -> bool:
        """Put the received certificate in place; return False if there is none.

        The present file is kept as the previous one first; a repetition after a power cut keeps the
        one that is there.

        Raises:
            CertificateAnswerError: OpenSSL does not accept the received file, which is removed.
        """
        if self.received() is None:
            return False
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(self.next)
        except ssl.SSLError as error:
            self.next.unlink(missing_ok=True)
            raise CertificateAnswerError(f"the certificate cannot be used: {error}") from error
        if self.present() is not None and not self.previous.exists():
            write_atomically(self.previous, self.path.read_bytes(), 0o600)
        self.next.replace(self.path)
        return True

    def confirm(self) -> bool:
        """Remove the previous file: a broker has accepted the present one. Return whether there was one."""
        if not self.previous.exists():
            return False
        self.previous.unlink(missing_ok=True)
        return True

    def restore(self) -> bool:
        """Complete the files before a start; return whether the present one can be read.

        A present file that is missing or damaged is replaced by the received one, or else by the
        previous one. An exchange that was begun is completed, or undone.
        """
        if self.exchanged.exists():
            if self.previous.exists():
                self.exchanged.unlink(missing_ok=True)
            else:
                self.exchanged.replace(self.previous)
        if self.present() is None and not self.install() and self.former() is not None:
            write_atomically(self.path, self.previous.read_bytes(), 0o600)
        return self.present() is not None

    def exchange(self) -> bool:
        """Put the previous file in place of the present one, which no broker has accepted.

        The refused one becomes the previous one, so that both are tried in turn. Returns False if
        there is no previous file that can be read. No pair is lost in a power cut: ``restore``
        completes the exchange.
        """
        if self.former() is None:
            return False
        write_atomically(self.exchanged, self.path.read_bytes(), 0o600)
        self.previous.replace(self.path)
        self.exchanged.replace(self.previous)
        return True


def _read(path: Path) -> IssuedToDevice | None:
    try:
        content = path.read_bytes()
        at = content.find(_CERTIFICATE)
        return _described(content[at:]) if at >= 0 else None
    except (OSError, CertificateAnswerError):
        return None


_described = lru_cache(maxsize=4)(described)
