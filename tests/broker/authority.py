"""A certificate authority that is thrown away after the test; keys are P-256 as in the field."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Signs certificates into a folder."""

    def __init__(self, folder: Path, name: str, *, days: tuple[float, float] = (-1 / 24, 1.0)):
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.file = folder / f"{name}.pem"
        certificate = self._sign(self.name, self.key, is_authority=True, days=days)
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        name: str,
        address: str | None = None,
        *,
        days: tuple[float, float] = (-1 / 24, 1.0),
        subject: str = "",
    ) -> tuple[Path, Path]:
        """Sign a certificate that is valid between two moments, in days from now.

        ``subject`` is its common name where that cannot be a file's name.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        named = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject or name)])
        certificate = self._sign(named, key, address=address, days=days)
        files = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return files

    def revoked(self, *, days: tuple[float, float] = (-1 / 24, 1.0)) -> Path:
        """Write a list of the revoked (nobody is) that is good between two moments."""
        now = dt.datetime.now(dt.UTC)
        made = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.name)
            .last_update(now + dt.timedelta(days=days[0]))
            .next_update(now + dt.timedelta(days=days[1]))
            .sign(self.key, hashes.SHA256())
        )
        file = self.folder / "revoked.pem"
        file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        return file

    def _sign(self, subject, key, *, is_authority=False, address=None, days=(-1 / 24, 1.0)):
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + dt.timedelta(days=days[0]))
            .not_valid_after(now + dt.timedelta(days=days[1]))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if address is not None:
            names = [x509.IPAddress(ipaddress.ip_address(address))]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self.key, hashes.SHA256())
