"""Create, load and erase a device's identity key: Ed25519 or P-256, in a file or in a PKCS #11 token."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

from edge_sdk.app.cli import fields
from edge_sdk.app.permissions import make_private_folder
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError, EdgeError
from edge_sdk.wire.errors import SignerUnavailable, TokenRefused
from edge_sdk.wire.keys import (
    KeyFileError,
    Signer,
    generate_device_key,
    kid_of,
    load_device_key,
    read_device_public,
    save_signing_key,
)
from edge_sdk.wire.pkcs11_uri import TokenPlace
from edge_sdk.wire.protocol.enrolment_statement import enrolment_statement, succession_statement
from edge_sdk.wire.public_key import kind_of

logger = logging.getLogger(__name__)

_MAKE = "make one with `gridfed-edge enrol CONFIG`"


class TokenUnreachable(EdgeError):  # noqa: N818 - a state of the token
    """The token that holds the identity key is away; the same command may succeed later."""

    exit_code = 75


def next_key_file(config: Config) -> Path:
    """Return the file of the key that is to replace the device's key."""
    return config.keys.device.with_name(f"{config.keys.device.name}.next")


def key_files(config: Config) -> list[Path]:
    """Return the files that a wipe deletes, in this order: a key that is to replace another goes first."""
    return [next_key_file(config), *identity_files(config)]


def keys_for_request(config: Config) -> tuple[Signer, Signer | None]:
    """Return the key that is to be enrolled, and the former one if that is being replaced.

    Raises:
        ConfigError: As ``load_signer``.
        KeyFileError: The new key cannot be read.
        TokenUnreachable: As ``load_signer``.
    """
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
        TokenUnreachable: The token is away, and the device has never used it.
    """
    if (place := config.identity.place) is not None:
        return _load_from_token(config, place)
    path, wanted = config.keys.device, config.identity.curve
    try:
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise ConfigError(
                f"{path}: other users can read the device key", hint=f"chmod 600 {path}"
            )
        key = load_device_key(path)
    except KeyFileError as error:
        raise ConfigError(str(error), hint=_MAKE) from error
    if (kind := kind_of(key.public)) != wanted:
        raise ConfigError(
            f"{path}: holds a key of kind {kind}, and identity.curve is {wanted}",
            hint=f'curve = "{kind}" in [identity] keeps the key; a new key must be enrolled again',
        )
    return key


def require_signer(signer: Signer) -> None:
    """Refuse to go on while the token that holds a key is away; a key in a file is always there.

    Raises:
        ConfigError: The token refuses.
        TokenUnreachable: It is away.
    """
    from edge_sdk.wire.pkcs11_token import Pkcs11Key  # noqa: PLC0415 - tokens only

    if not isinstance(signer, Pkcs11Key):
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
        TokenUnreachable: The token that is to hold it is away.
    """
    if (place := config.identity.place) is not None:
        return _create_in_token(config, place)
    path, is_new = config.keys.device, not has_identity(config)
    try:
        if is_new:
            if not path.parent.exists():
                make_private_folder(path.parent)
            save_signing_key(path, generate_device_key(config.identity.curve))
    except OSError as error:
        raise ConfigError(str(error)) from error
    return load_signer(config), is_new


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
        ConfigError: The token refuses.
        TokenUnreachable: It is away: the key is still there.
    """
    place = config.identity.place
    if place is None or not has_identity(config):
        return
    from edge_sdk.wire.pkcs11_token import destroy_in_token  # noqa: PLC0415

    try:
        destroy_in_token(place)
    except TokenRefused as error:
        hint = f"destroy it with the token's own program, then delete {identity_files(config)[0]}"
        raise ConfigError(str(error), hint=hint) from error
    except SignerUnavailable as error:
        raise TokenUnreachable(
            str(error), hint="the key is still in the token; give the command again"
        ) from error


def place_of(config: Config) -> str:
    """Return where the identity key is, for the operator."""
    return str(config.identity.place or f"file {config.keys.device}")


def _load_from_token(config: Config, place: TokenPlace) -> Signer:
    """Return the key in a token; one that is away is reached when it is needed."""
    from edge_sdk.wire.pkcs11_token import Pkcs11Key  # noqa: PLC0415 - tokens only

    _refuse_file(config)
    known = _known_public(config)
    try:
        key = Pkcs11Key(place)
    except TokenRefused as error:
        raise ConfigError(str(error), hint="gridfed-edge check CONFIG") from error
    except SignerUnavailable as error:
        if known is None:
            raise TokenUnreachable(str(error)) from error
        logger.warning("token unreachable %s", fields(why=error))
        return Pkcs11Key(place, known)
    if known is not None and known != key.public:
        raise ConfigError(
            f"{place}: holds key {key.kid.hex()}, and {identity_files(config)[0]} is of key "
            f"{kid_of(known).hex()}",
            hint="insert the enrolled token, or make the new key known: gridfed-edge enrol CONFIG",
        )
    return key


def _create_in_token(config: Config, place: TokenPlace) -> tuple[Signer, bool]:
    """Find the key in the token, or make it there; return it, and whether it is new."""
    from edge_sdk.wire.pkcs11_token import generate_in_token  # noqa: PLC0415

    _refuse_file(config)
    try:
        return generate_in_token(place)
    except TokenRefused as error:
        raise ConfigError(str(error)) from error
    except SignerUnavailable as error:
        raise TokenUnreachable(str(error)) from error


def _refuse_file(config: Config) -> None:
    """Refuse a private key file beside a key in a token: one of them is not the identity."""
    if config.keys.device.exists():
        raise ConfigError(
            f"{config.keys.device}: holds a private key, and identity.key names one in a token",
            hint="delete the file, or remove identity.key; the other key must be enrolled again",
        )


def _known_public(config: Config) -> bytes | None:
    """Return the public key that enrol wrote, or None before."""
    path = identity_files(config)[0]
    if not path.exists():
        return None
    try:
        public = read_device_public(path)
    except KeyFileError as error:
        raise ConfigError(str(error), hint=_MAKE) from error
    if kind_of(public) != config.identity.curve:
        raise ConfigError(
            f"{path}: holds a public key of kind {kind_of(public)}, and identity.curve is "
            f"{config.identity.curve}",
            hint="to enrol the key in the token: gridfed-edge enrol CONFIG",
        )
    return public
