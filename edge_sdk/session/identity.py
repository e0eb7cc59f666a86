"""Create, load and erase a device's identity key: Ed25519 or P-256, in a file or where an extension keeps it."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Protocol

from edge_sdk.app.permissions import make_private_folder
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError, EdgeError, SignerUnavailable, TokenRefused
from edge_sdk.protocol.keys import (
    KeyFileError,
    RequiredSigner,
    Signer,
    generate_device_key,
    load_device_key,
    save_signing_key,
)
from edge_sdk.protocol.public_key import kind_of
from edge_sdk.protocol.statements import enrolment_statement, succession_statement
from edge_sdk.store.schema import FILE
from edge_sdk.store.second_count import CountFound, CountPlace, begin_counts, find_count
from edge_sdk.store.store import DeviceStore

MAKE = "make one with `gridfed-edge enrol CONFIG`"


class TokenUnreachable(EdgeError):  # noqa: N818 - a state of the token
    """The token that holds the identity key is away; the same command may succeed later."""

    exit_code = 75


class KeyPlace(Protocol):
    """Place of the identity key outside of files, as an extension gives it. Its text names it for people."""

    def load(self, config: Config) -> Signer:
        """Return the key; one that is away is reached when it is needed."""

    def create(self, config: Config) -> tuple[Signer, bool]:
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


def keys_for_request(config: Config) -> tuple[Signer, Signer | None]:
    path, present = next_key_file(config), load_signer(config)
    return (load_device_key(path), present) if path.exists() else (present, None)


def succession_line(config: Config, key: Signer, former: Signer) -> str:
    """Return the line that an operator needs to enrol a key in place of the former one."""
    proof = key.sign(enrolment_statement(config.fleet, config.id, key.public))
    succession = former.sign(succession_statement(config.fleet, config.id, key.public))
    return f"{config.id},{key.public.hex()},{proof.hex()},,{succession.hex()}"


def load_signer(config: Config) -> Signer:
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
        key = load_device_key(path)
    except KeyFileError as error:
        raise ConfigError(str(error), hint=MAKE) from error
    if (kind := kind_of(key.public)) != wanted:
        raise ConfigError(
            f"{path}: holds a key of kind {kind}, and identity.curve is {wanted}",
            hint=f'curve = "{kind}" in [identity] keeps the key; a new key must be enrolled again',
        )
    return key


def signer_of(config: Config) -> Signer:
    """Read the device's own key; a device alone makes one, by which it can be enrolled later."""
    return create_identity(config)[0] if config.is_alone else load_signer(config)


def require_signer(signer: Signer) -> None:
    """Refuse to continue while the token that holds a key is away; a key in a file is always there."""
    if not isinstance(signer, RequiredSigner):
        return
    try:
        signer.require()
    except TokenRefused as error:
        raise ConfigError(str(error)) from error
    except SignerUnavailable as error:
        raise TokenUnreachable(str(error)) from error


def create_identity(config: Config) -> tuple[Signer, bool]:
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
            key = generate_device_key(config.identity.curve)
            begin_count(config, key)  # first: a key that was used without a count has lost it
            save_signing_key(path, key)
    except OSError as error:
        raise ConfigError(str(error)) from error
    return load_signer(config), is_new


def begin_count(config: Config, key: Signer) -> None:
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
        return load_device_key(config.keys.device).public if has_identity(config) else None
    except KeyFileError as error:
        raise ConfigError(str(error), hint=MAKE) from error


def has_identity(config: Config) -> bool:
    """Return whether the device has a key; one in a token counts once its public key is written."""
    return any(path.exists() for path in identity_files(config))


def identity_files(config: Config) -> list[Path]:
    """Return the file whose deletion ends the identity: the private key, or the token's public one."""
    path = config.keys.device
    return [path if config.identity.place is None else path.with_suffix(".pub")]


def erase_identity(config: Config) -> None:
    """Destroy the key in the token, where it is in one; a file is deleted by the caller.

    Raises:
        TokenUnreachable: It is away: the key is still there.
    """
    if (place := place_outside(config)) is not None and has_identity(config):
        place.erase(config)


def place_outside(config: Config) -> KeyPlace | None:
    """Return the place of the key outside of files; None if it is in a file."""
    place: KeyPlace | None = config.identity.place
    return place


def place_of(config: Config) -> str:
    return str(config.identity.place or f"file {config.keys.device}")
