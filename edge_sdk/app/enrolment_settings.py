"""Define the sections ``[ca]``, ``[encryption]``, ``[identity]`` and ``[keys]`` of a device's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edge_sdk.wire.pkcs11_uri import SCHEME, Pkcs11Uri, TokenPlace
from edge_sdk.wire.public_key import KeyKind


@dataclass(frozen=True, slots=True)
class ReceptionSection:
    """Encryption of messages to this device, so that no broker reads them."""

    required: bool = False  # announce a key of this device, and refuse clear messages to it alone


@dataclass(frozen=True, slots=True)
class CaSection:
    """EST server (RFC 7030) that issues and renews this device's certificate."""

    url: str = ""  # https://host:port, with a path label where the server has one; unset: none
    ca_file: Path | None = None  # authority of the server's certificate; unset: broker.ca_file
    shared: bool = False  # the common name is FLEET.ID, for a broker that fleets share

    def __post_init__(self) -> None:
        """Refuse an address without TLS."""
        if self.url and not self.url.startswith("https://"):
            raise ValueError(f"url: {self.url!r} is not an address of HTTPS")

    def require_one_file(
        self, cert_file: Path | None, key_file: Path | None, *, is_alone: bool
    ) -> None:
        """Refuse settings under which a certificate cannot be renewed in one step.

        Args:
            cert_file: File of the device's certificate.
            key_file: File of its private key.
            is_alone: True without further participations.

        Raises:
            ValueError: The files differ, or are missing, or there are further participations.
        """
        if not self.url:
            return
        if cert_file is None or cert_file != key_file:
            raise ValueError(
                "ca.url: expected broker.cert_file and broker.key_file to be one file, in which "
                "key and certificate change together"
            )
        if not is_alone:
            raise ValueError(
                "ca.url: expected no [[participation]], whose certificate it does not renew"
            )


@dataclass(frozen=True, slots=True)
class KeysSection:
    """Keys, each given as a file path."""

    device: Path  # this device's identity key, PEM, mode 0600
    root: Path  # root public key of the operator: 64 hex digits
    aggregator: Path | None = None  # pinned aggregator key besides those that root announces

    def __post_init__(self) -> None:
        """Refuse a URI in place of a file."""
        if str(self.device).startswith(SCHEME):
            raise ValueError("device: expected a file; identity.key names a key in a token")


@dataclass(frozen=True, slots=True)
class IdentitySection:
    """Kind of this device's identity key, and the PKCS #11 token that holds it."""

    curve: KeyKind = "ed25519"  # ed25519 or p256; an existing key of another kind is refused
    key: str = ""  # URI of the key in a token: pkcs11:token=LABEL;object=NAME; unset: keys.device
    module: Path | None = None  # PKCS #11 module of that token, a shared library
    pin_file: Path | None = None  # file with the token's user PIN, mode 0600

    def __post_init__(self) -> None:
        """Refuse a URI that selects no key, and a token without its module."""
        if not self.key:
            given = (("module", self.module), ("pin_file", self.pin_file))
            for name, path in given:
                if path is not None:
                    raise ValueError(
                        f"{name}: expected key, the URI of a key in a token, beside it"
                    )
            return
        try:
            Pkcs11Uri.parse(self.key)
        except ValueError as error:
            raise ValueError(f"key: {error}") from error
        if self.module is None:
            raise ValueError(
                "key: expected module, the path of the token's PKCS #11 module, beside it"
            )

    @property
    def place(self) -> TokenPlace | None:
        """Return the place of the key in a token; None if it is in a file."""
        if not self.key or self.module is None:
            return None
        return TokenPlace(self.module, Pkcs11Uri.parse(self.key), self.curve, self.pin_file)
