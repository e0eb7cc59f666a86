"""Open the keys with which the aggregator signs, and the key to which the root has delegated bundles."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aggregator.authority.authority_replacement import announced_authorities
from aggregator.config import AggregatorConfig
from aggregator.config.bundle_registry import bundle_keys
from aggregator.operations.key_store import is_token_uri, open_signer
from aggregator.operations.root_signers import RootSigners
from aggregator.rounds.announcements import Roles
from edge_sdk.app.cli import USAGE, Failure
from edge_sdk.app.permissions import require_private
from edge_sdk.wire.keys import (
    PUBLIC_SIZE,
    KeyFileError,
    Signer,
    SigningKey,
    kid_of,
    load_signing_key,
)
from edge_sdk.wire.protocol.messages import KeysMessage


class RunSetupError(Failure):
    """Signed announcements that are missing or do not match the configuration."""

    exit_code = USAGE


@dataclass(frozen=True, slots=True)
class Delegate:
    """A key to which the root has delegated bundles.

    Attributes:
        key: Its private key.
    """

    key: Signer

    @property
    def name(self) -> str:
        """Return its key id."""
        return kid_of(self.key.public).hex()


def roles_of(configured: AggregatorConfig, root: RootSigners) -> Roles:
    """Return the roles of the list of keys that the root signs under a configuration."""
    model = (model_signer(configured).public,) if configured.keys.model else ()
    return Roles(
        root=root.root if root.former is not None else None,
        bundle=bundle_keys(configured),
        model=model,
        ca=announced_authorities(configured.ca.folder),
    )


def signer(configured: AggregatorConfig) -> SigningKey:
    """Read the online key.

    Raises:
        RunSetupError: It is missing or is no key; the hint names the remedy.
        PermissionsError: Other users can read it.
    """
    try:
        key = load_signing_key(configured.signing_key)
    except KeyFileError as error:
        raise RunSetupError(
            str(error),
            hint=f"put it back, or create another: gridfed-aggregator init {configured.file}",
        ) from error
    require_private(configured.signing_key)
    return key


def model_signer(configured: AggregatorConfig) -> Signer:
    """Open the key that signs models and their log: ``keys.model``, else the online key.

    Raises:
        RunSetupError: It is missing, or is no Ed25519 key.
        PermissionsError: Other users can read it.
        SignerUnavailable: Its token is away.
    """
    where: Path | str = configured.keys.model
    if not where:
        return signer(configured)
    try:
        if not is_token_uri(where):
            where = configured.file.absolute().parent / Path(where).expanduser()
            require_private(where)
        key = open_signer(where)
    except KeyFileError as error:
        raise RunSetupError(f"keys.model: {error}", hint="put it back") from error
    if len(key.public) != PUBLIC_SIZE:
        raise RunSetupError("keys.model: expected an Ed25519 key, got a P-256 key")
    return key


def check_model_key(
    configured: AggregatorConfig, announced: KeysMessage, online: SigningKey
) -> None:
    """Refuse to start if devices would refuse the key that signs models.

    Raises:
        RunSetupError: It is not announced.
    """
    model = model_signer(configured).public if configured.keys.model else online.public
    if model not in (announced.model or announced.sign):
        raise RunSetupError(
            f"the key of models (key id {kid_of(model).hex()}) is not announced",
            hint=f"sign it with the root key: gridfed-aggregator announce {configured.file}",
        )
