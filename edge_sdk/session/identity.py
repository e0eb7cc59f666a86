"""Create, load, use and erase a device's identity key: Ed25519 or P-256, in a file or where an extension keeps it."""

from __future__ import annotations

import logging
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from edge_sdk.app.cli import fields
from edge_sdk.app.permissions import make_private_folder
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError, EdgeError
from edge_sdk.protocol import keys
from edge_sdk.protocol.messages import FloorMessage, WelcomeMessage
from edge_sdk.protocol.outbox import Outbox
from edge_sdk.protocol.public_key import kind_of
from edge_sdk.protocol.statements import enrolment_statement, succession_statement
from edge_sdk.store.schema import FILE
from edge_sdk.store.second_count import CountFound, CountPlace, begin_counts, find_count
from edge_sdk.store.store import DeviceStore

logger = logging.getLogger(__name__)

MAKE = "make one with `gridfed-edge enrol CONFIG`"


class TokenUnreachable(EdgeError):  # noqa: N818 - a state of the token
    """The token that holds the identity key is away; the same command may succeed later."""

    exit_code = 75


class KeyPlace(Protocol):
    """Place of the identity key outside of files, as an extension gives it. Its text names it for people."""

    def load(self, config: Config) -> keys.Signer:
        """Return the key; an absent token is reached when the key is used."""

    def create(self, config: Config) -> tuple[keys.Signer, bool]:
        """Find the key, or make it; return it, and whether it is new."""

    def public(self, config: Config) -> bytes | None:
        """Return the public key that enrol wrote, or None before."""

    def erase(self, config: Config) -> None:
        """Destroy the key."""


def next_key_file(config: Config) -> Path:
    return config.keys.device.with_name(f"{config.keys.device.name}.next")


def key_files(config: Config) -> list[Path]:
    """Return the files that a wipe deletes, in this order: a key that is to replace another goes first."""
    return [next_key_file(config), *identity_files(config)]


def keys_for_request(config: Config) -> tuple[keys.Signer, keys.Signer | None]:
    path, present = next_key_file(config), load_signer(config)
    return (keys.load_device_key(path), present) if path.exists() else (present, None)


def succession_line(config: Config, key: keys.Signer, former: keys.Signer) -> str:
    """Return the line that an operator needs to enrol a key in place of the former one."""
    proof = key.sign(enrolment_statement(config.fleet, config.id, key.public))
    succession = former.sign(succession_statement(config.fleet, config.id, key.public))
    return f"{config.id},{key.public.hex()},{proof.hex()},,{succession.hex()}"


def load_signer(config: Config) -> keys.Signer:
    """Read the device's own key; refuse one that other users of the machine can read.

    A token that is away is no error for a device that has used it before: it is reached later.

    Raises:
        ConfigError: The key is missing, readable by others, or of another kind than configured.
    """
    if (place := place_outside(config)) is not None:
        return place.load(config)
    path, wanted = config.keys.device, config.identity.curve
    try:
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise ConfigError(
                f"{path}: other users can read the device key", hint=f"chmod 600 {path}"
            )
        key = keys.load_device_key(path)
    except keys.KeyFileError as error:
        raise ConfigError(str(error), hint=MAKE) from error
    if (kind := kind_of(key.public)) != wanted:
        raise ConfigError(
            f"{path}: holds a key of kind {kind}, and identity.curve is {wanted}",
            hint=f'curve = "{kind}" in [identity] keeps the key; a new key must be enrolled again',
        )
    return key


def signer_of(config: Config) -> keys.Signer:
    """Read the device's own key; a device alone makes one, by which it can be enrolled later."""
    return create_identity(config)[0] if config.is_alone else load_signer(config)


def create_identity(config: Config) -> tuple[keys.Signer, bool]:
    """Create the device's key if there is none; return it, and whether it is new.

    Raises:
        ConfigError: The key exists but is not of the configured kind, or cannot be written.
    """
    if (place := place_outside(config)) is not None:
        return place.create(config)
    path, is_new = config.keys.device, not has_identity(config)
    try:
        if is_new:
            if not path.parent.exists():
                make_private_folder(path.parent)
            key = keys.generate_device_key(config.identity.curve)
            begin_count(config, key)  # first: a key that was used without a count has lost it
            keys.save_signing_key(path, key)
    except OSError as error:
        raise ConfigError(str(error)) from error
    return load_signer(config), is_new


def begin_count(config: Config, key: keys.Signer) -> None:
    """Count the releases under a key that was made just now; those of earlier keys stay counted.

    Raises:
        EdgeError: The count cannot be written, or a state cannot be read.
    """
    recorded: dict[str, int] = {}
    for one in config.participants():
        if (one.state / FILE).exists():
            with DeviceStore.open(one.state, read_only=True) as store:
                recorded[one.further_id] = store.numbers().spent
    begin_counts(config.counted_in, key, recorded)


def place_of_count(config: Config) -> CountPlace:
    """Return where the releases of a participation are counted outside its state folder."""
    return CountPlace(config.counted_in, config.further_id, config.counts_releases)


def find_releases(config: Config, store: DeviceStore | None) -> CountFound:
    """Return the count with which a participation continues, read beside a running agent."""
    public = identity_public(config)
    if public is None:
        return CountFound()
    return find_count(store, place_of_count(config), public)


def identity_public(config: Config) -> bytes | None:
    """Return the public key of the device without its token; None before it has one.

    Raises:
        ConfigError: The file holds no key.
    """
    if (place := place_outside(config)) is not None:
        return place.public(config)
    try:
        return keys.load_device_key(config.keys.device).public if has_identity(config) else None
    except keys.KeyFileError as error:
        raise ConfigError(str(error), hint=MAKE) from error


def has_identity(config: Config) -> bool:
    """Return whether the device has a key; one in a token counts once its public key is written."""
    return any(path.exists() for path in identity_files(config))


def identity_files(config: Config) -> list[Path]:
    """Return the file whose deletion ends the identity: the private key, or the token's public one."""
    path = config.keys.device
    return [path if config.identity.place is None else path.with_suffix(".pub")]


def place_outside(config: Config) -> KeyPlace | None:
    """Return the place of the key outside of files; None if it is in a file."""
    place: KeyPlace | None = config.identity.place
    return place


def place_of(config: Config) -> str:
    return str(config.identity.place or f"file {config.keys.device}")


STEP: Final = "reenrolment"
"""Name of the stored step of a replacement; 0 without one."""

HelloAnswer = WelcomeMessage | FloorMessage


class KeyReplacement:
    """The replacement of an identity key. This one replaces nothing; that of an extension does."""

    step = 0

    def __init__(self, identity: IdentityKeys) -> None:
        self.identity = identity

    def order(self) -> bool:
        """Begin; ``CommandLog.add`` saves the step. Return False if the key cannot be replaced."""
        logger.warning(
            "identity key not replaced %s", fields(why="no extension is installed for it")
        )
        return False

    def advance(self, now: float, outbox: Outbox) -> bool:  # noqa: ARG002 - for those that replace
        """Run the due work; return whether a hello is due. ``now``: seconds of a monotonic clock."""
        return False

    def try_next(self) -> None:
        """Sign the next hello by the new key, if there is one: the aggregator may know it now."""

    def hello_signer(self, ref: bytes) -> keys.Signer:  # noqa: ARG002 - as above
        """Return the key that signs a hello, the same one each time that it is sent."""
        return self.identity

    def receive(self, answer: HelloAnswer, is_welcome: Callable[[HelloAnswer], bool]) -> bool:  # noqa: ARG002 - as above
        """Follow the answer to a hello; return True if another key is in use now."""
        return False

    @property
    def is_request_due(self) -> bool:
        """Return whether a certificate request with the new key is due."""
        return False

    def for_request(self) -> tuple[keys.Signer, keys.Signer | None]:
        """Return the key of a certificate request, and the former one if it is another."""
        return self.identity.key, None

    def record_issued(self) -> None:
        """Record that the request with the keys of ``for_request`` was answered."""


class IdentityKeys:
    """The identity key in use, a ``RemovableSigner``.

    Attributes:
        is_shared: True if further participations use the key, which is then not replaced.
        replacement: What replaces the key; loaded when a replacement is ordered or under way.
    """

    def __init__(self, config: Config, store: DeviceStore, key: keys.Signer) -> None:
        self.config, self.store = config, store
        self.is_shared = self._is_reconnection_due = False
        self.use(key)
        self.replacement = KeyReplacement(self)
        if store.fact(STEP) or next_key_file(config).exists():
            self._load()

    def use(self, key: keys.Signer) -> None:
        self.key, self.public, self.sign = key, key.public, key.sign

    def reach(self) -> bool:
        """Return whether a key in a token can be used now."""
        return isinstance(self.key, keys.RemovableSigner) and self.key.reach()

    def share(self) -> None:
        """Note that further participations use the key: it is not replaced."""
        self.is_shared = True

    def reconnect(self) -> None:
        """Connect again soon: the last will is of a former key."""
        self._is_reconnection_due = True

    def take_reconnection(self) -> bool:
        """Return whether to connect again, and forget it."""
        is_due, self._is_reconnection_due = self._is_reconnection_due, False
        return is_due

    def order(self) -> bool:
        """Begin a replacement unless one is under way; return False if the key cannot be replaced."""
        if self.is_shared or self.config.identity.place is not None:
            return False
        self._load()
        return self.replacement.order()

    def _load(self) -> None:
        for entry in self.config.index.having("replacement"):
            if type(self.replacement) is KeyReplacement:
                self.replacement = entry.load("replacement")(self)
