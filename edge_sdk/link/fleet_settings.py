"""Define the sections ``[broker]``, ``[encryption]``, ``[identity]`` and ``[keys]`` of a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from edge_sdk.app.extensions import ExtensionIndex, PluginRegistry
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.app.schema import Between
from edge_sdk.app.settings import Duration
from edge_sdk.protocol.public_key import KeyKind

ALONE = "the device runs alone and sends nothing; to join a fleet, add fleet, [broker], keys.root and [privacy]"
"""The sentence about a device without a fleet."""


KEY_PLACES: PluginRegistry[Callable[[str, KeyKind, Path | None, Path | None], Any]] = (
    PluginRegistry(
        {}, "gridfed.key_places", listed=ExtensionIndex("edge_sdk").loaders("key_places")
    )
)
"""Functions from a key's URI, its kind, a token's module and its PIN file to the place of the key, by the
scheme of the URI; a ``ValueError`` says what is wrong."""


@dataclass(frozen=True, slots=True)
class BrokerSection:
    """Broker address. Plain ``mqtt://`` is for loopback only; other hosts need ``mqtts://``."""

    url: str = ""  # mqtts://host:8883; unset, without keys.root: the device runs alone
    ca_file: Path | None = None  # authority that signed the broker's certificate
    cert_file: Path | None = None  # certificate of this device
    key_file: Path | None = None  # private key of that certificate
    protocol: Literal[4, 5] = 5  # MQTT 5, or 4 for 3.1.1
    keepalive: Annotated[int, Between(5, 65535)] = 60  # seconds without traffic before a ping
    reconnect_max: Duration = "10m"  # longest wait between two connection attempts
    insecure: bool = False  # allow mqtt:// to another host


@dataclass(frozen=True, slots=True)
class ReceptionSection:
    """Encryption of messages to this device, so that no broker reads them."""

    required: bool = False  # announce a key of this device, and refuse clear messages to it alone


@dataclass(frozen=True, slots=True)
class KeysSection:
    """Keys, each given as a file path."""

    device: Path  # this device's identity key, PEM, mode 0600
    root: Path | None = None  # root public key of the operator; unset, without [broker]: alone
    aggregator: Path | None = None  # pinned aggregator key besides those that root announces

    def __post_init__(self) -> None:
        if scheme_of(str(self.device)) in KEY_PLACES:
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
        if scheme_of(self.key) not in KEY_PLACES:
            known = ", ".join(f"{name}:…" for name in KEY_PLACES.names())
            raise ValueError(f"key: expected a URI of a key in a token: {known or 'none is known'}")
        try:
            _ = self.place
        except ValueError as error:
            raise ValueError(f"key: {error}") from error

    @property
    def place(self) -> Any:  # noqa: ANN401 - ``edge_sdk.session.identity.KeyPlace``
        """Return the place of the key in a token; None if it is in a file."""
        if not self.key:
            return None
        return KEY_PLACES[scheme_of(self.key) or ""](
            self.key, self.curve, self.module, self.pin_file
        )


def scheme_of(text: str) -> str | None:
    """Return the scheme of a URI; None if the text is none.

    >>> scheme_of("pkcs11:token=a"), scheme_of("meter.key")
    ('pkcs11', None)
    """
    scheme, colon, _ = text.partition(":")
    return scheme if colon else None


def refuse_half_a_fleet(
    broker: BrokerSection, keys: KeysSection, given: Mapping[str, bool]
) -> None:
    """Refuse a broker without the operator's root, a root without a broker, and settings of a fleet without one.

    Args:
        given: Whether other settings that need a fleet are given, by name.

    Raises:
        ValueError: With what to add, and what to remove to run alone.
    """
    if broker.url and keys.root is None:
        raise ValueError(
            "keys.root: missing beside broker.url; copy root.pub from the operator and name it, or "
            "remove [broker] to run alone"
        )
    of_fleet = {
        "keys.root": keys.root is not None,
        "keys.aggregator": keys.aggregator is not None,
        "[broker]": broker != BrokerSection(),
        **given,
    }
    found = [name for name, is_given in of_fleet.items() if is_given]
    if found and not broker.url:
        raise ValueError(
            f"broker.url: missing beside {found[0]}; give the address of the fleet's broker, or remove "
            f"{', '.join(found)} to run alone"
        )
