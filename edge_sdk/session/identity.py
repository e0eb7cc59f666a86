"""Create and load a device's identity key: Ed25519 or P-256, in a file."""

from __future__ import annotations

import stat
from pathlib import Path

from edge_sdk.app.permissions import make_private_folder
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError
from edge_sdk.wire.keys import (
    DeviceSigningKey,
    KeyFileError,
    Signer,
    generate_device_key,
    load_device_key,
    save_signing_key,
)
from edge_sdk.wire.protocol.enrolment_statement import enrolment_statement, succession_statement
from edge_sdk.wire.public_key import kind_of


def next_key_file(config: Config) -> Path:
    """Return the file of the key that is to replace the device's key."""
    return config.keys.device.with_name(f"{config.keys.device.name}.next")


def key_files(config: Config) -> list[Path]:
    """Return every file that may hold a private key of the device's identity."""
    return [config.keys.device, next_key_file(config)]


def keys_for_request(config: Config) -> tuple[Signer, Signer | None]:
    """Return the key that is to be enrolled, and the former one if that is being replaced.

    Raises:
        ConfigError: As ``load_signer``.
        KeyFileError: The new key cannot be read.
    """
    path, present = next_key_file(config), load_signer(config)
    return (load_device_key(path), present) if path.exists() else (present, None)


def succession_line(config: Config, key: Signer, former: Signer) -> str:
    """Return the line that an operator needs to enrol a key in place of the former one."""
    proof = key.sign(enrolment_statement(config.fleet, config.id, key.public))
    succession = former.sign(succession_statement(config.fleet, config.id, key.public))
    return f"{config.id},{key.public.hex()},{proof.hex()},,{succession.hex()}"


def load_signer(config: Config) -> DeviceSigningKey:
    """Read the device's own key; refuse one that other users of the machine can read.

    Raises:
        ConfigError: The key is missing, readable by others, or of another kind than configured.
    """
    path, wanted = config.keys.device, config.identity.curve
    try:
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise ConfigError(
                f"{path}: other users can read the device key", hint=f"chmod 600 {path}"
            )
        key = load_device_key(path)
    except KeyFileError as error:
        raise ConfigError(str(error), hint="make one with `gridfed-edge enrol CONFIG`") from error
    if (kind := kind_of(key.public)) != wanted:
        raise ConfigError(
            f"{path}: holds a key of kind {kind}, and identity.curve is {wanted}",
            hint=f'curve = "{kind}" in [identity] keeps the key; a new key must be enrolled again',
        )
    return key


def create_identity(config: Config) -> tuple[DeviceSigningKey, bool]:
    """Create the device's key if there is none; return it, and whether it is new.

    Raises:
        ConfigError: The key file exists but is no key of the configured kind, or cannot be written.
    """
    path = config.keys.device
    is_new = not path.exists()
    try:
        if is_new:
            if not path.parent.exists():
                make_private_folder(path.parent)
            save_signing_key(path, generate_device_key(config.identity.curve))
    except OSError as error:
        raise ConfigError(str(error)) from error
    return load_signer(config), is_new
