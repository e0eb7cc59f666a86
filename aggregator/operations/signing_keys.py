"""Open the keys of the root, of models and of the aggregator, and watch the signatures that only the root renews."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from aggregator.config import AggregatorConfig
from aggregator.config.bundle_registry import bundle_keys
from aggregator.config.root_files import NEXT, former_root, next_root
from aggregator.rounds.announcements import Roles
from aggregator.store.store import Store
from edge_sdk.app.cli import fields
from edge_sdk.app.clock import DAY, Clock
from edge_sdk.app.extensions import ExtensionIndex, PluginRegistry
from edge_sdk.app.permissions import require_private
from edge_sdk.errors import USAGE, Failure, Refused
from edge_sdk.protocol import topics
from edge_sdk.protocol.codec import decode
from edge_sdk.protocol.envelope import unproved
from edge_sdk.protocol.keys import (
    PUBLIC_SIZE,
    KeyFileError,
    Signer,
    SigningKey,
    kid_of,
    load_device_key,
    load_signing_key,
)
from edge_sdk.protocol.messages import BundleMessage, KeysMessage
from edge_sdk.protocol.root_keys import RootKeys, read_root

logger = logging.getLogger(__name__)

# functions that open a private key by its URI, by the URI's scheme
SIGNERS: PluginRegistry[Callable[[str], Signer]] = PluginRegistry(
    {}, "gridfed.signers", listed=ExtensionIndex("edge_sdk").loaders("signers")
)


def is_token_uri(where: Path | str) -> bool:
    """Return whether this names a key in a token instead of a file.

    >>> is_token_uri("/etc/root.key")
    False
    """
    scheme, colon, _ = str(where).partition(":")
    return bool(colon) and scheme in SIGNERS


def open_signer(where: Path | str) -> Signer:
    """Open a private key in a PEM file or a token; raise KeyFileError if it, or a package, is missing or wrong."""
    if is_token_uri(where):
        return SIGNERS[str(where).partition(":")[0]](str(where))
    return load_device_key(where)


class RootKeyError(Failure):
    """Too few private keys of the root are present, or they are of another root."""

    exit_code: ClassVar[int] = USAGE


@dataclass(frozen=True, slots=True)
class RootSigners(Signer):
    """Private keys that sign for the root.

    The first one is also a ``Signer`` of its own, for a bundle's archive, which has one signature.
    """

    keys: tuple[Signer, ...]  # private keys that are present, those of the root in force first
    root: RootKeys
    former: RootKeys | None = None  # the root before, while devices are changing over; it signs too

    @classmethod
    def of(cls, key: Signer) -> RootSigners:
        """Return a root of one key.

        >>> from edge_sdk.protocol.keys import from_seed
        >>> RootSigners.of(from_seed(bytes(range(32)))).name
        '56475aa75463474c'
        """
        return cls((key,), RootKeys((key.public,)))

    @property
    def public(self) -> bytes:
        return self.keys[0].public

    @property
    def kid(self) -> bytes:
        """Return the key id of the first."""
        return kid_of(self.public)

    @property
    def also(self) -> tuple[Signer, ...]:
        """Return all but the first."""
        return self.keys[1:]

    @property
    def name(self) -> str:
        """Return the key ids of the keys that sign, and the threshold unless it is one of one."""
        names = ", ".join(kid_of(key.public).hex() for key in self.keys)
        return names if self.root.threshold == 1 else f"{self.root.threshold} of {names}"

    def sign(self, data: bytes) -> bytes:
        return self.keys[0].sign(data)


def root_signers(folder: Path, public: Path, files: Sequence[str]) -> RootSigners:
    """Load the keys of the root, and check that they are enough.

    Args:
        files: Private key files, or PKCS#11 URIs; empty for ``root*.key`` in the state folder.

    Raises:
        RootKeyError: They are not enough of the root, or a rotation has to be finished first.
    """
    if next_root(folder) is not None:
        raise RootKeyError(
            f"{folder / NEXT}: a rotation of the root has begun and is not announced",
            hint="complete it: give `gridfed-aggregator rotate root` again",
        )
    root, former = read_root(public), former_root(folder)
    return checked(private_keys(folder, files), root, former)


def private_keys(folder: Path, files: Sequence[str]) -> list[Signer]:
    """Load private keys from files or tokens; from the state folder if none is named."""
    found = [*files] or sorted(str(path) for path in folder.glob("root*.key"))
    if not found:
        raise RootKeyError(
            f"{folder / 'root.key'}: file not found, and root.pub exists: this fleet has a root key",
            hint="name its private key: --root-key FILE",
        )
    for one in found:
        if not is_token_uri(one):
            if not Path(one).exists():
                raise RootKeyError(
                    f"{one}: file not found, and root.pub exists: this fleet has a root key",
                    hint="name its private key: --root-key FILE",
                )
            require_private(Path(one))
    return [open_signer(one) for one in found]


def checked(keys: Sequence[Signer], root: RootKeys, former: RootKeys | None) -> RootSigners:
    """Return the keys of the root in force or of the former one, if they reach the threshold."""
    present = {key.public: key for key in keys}
    for one, what in ((root, "root"), (former, "former root")):
        if one is not None and not one.is_enough(present):
            count = len(set(one.keys) & set(present))
            given = ", ".join(kid_of(key).hex() for key in present)
            raise RootKeyError(
                f"{what} ({one.name}): {count} of its private keys are present, expected "
                f"{one.threshold}" + ("" if count else f": {given} is not the private key"),
                hint="name each: --root-key FILE --root-key FILE; devices trust only that root",
            )
    wanted = dict.fromkeys((*root.keys, *(former.keys if former else ())))
    return RootSigners(tuple(present[key] for key in wanted if key in present), root, former)


HORIZON = 30 * DAY  # time before the end from which the daemon warns, milliseconds


@dataclass(frozen=True, slots=True)
class RootSignature:
    """An announcement that the root has signed."""

    topic: str
    until: int  # time from which devices refuse it, Unix milliseconds

    def is_near(self, now: int, horizon: int = HORIZON) -> bool:
        """Return whether the end is at most ``horizon`` milliseconds away.

        >>> one = RootSignature("gf/1/north/_all/keys", 400 * DAY)
        >>> one.is_near(0), one.is_near(371 * DAY)
        (False, True)
        """
        return self.until - now <= horizon


def root_signatures(announced: Mapping[str, bytes], online: bytes) -> Iterator[RootSignature]:
    """Return the announcements of the root that have an end.

    Args:
        announced: Signed payloads by topic, as the store has them.
        online: Raw public key of the aggregator; a list of keys ends for it when this key does.
    """
    for topic, payload in announced.items():
        address = topics.parse(topic)
        kind = address.kind if address is not None and payload else ""
        try:
            if kind == KeysMessage.kind:
                keys = decode(KeysMessage, unproved(payload))
                ends = [
                    end for key, end in zip(keys.sign, keys.until, strict=True) if key == online
                ]
                yield RootSignature(topic, max(ends, default=0))
            elif kind == BundleMessage.kind:
                bundle = decode(BundleMessage, unproved(payload))
                if bundle.expires is not None:
                    yield RootSignature(topic, bundle.expires)
        except Refused:  # another version's; it is signed again before the daemon starts
            continue


@dataclass(slots=True)
class RootSignatureMonitor:
    """Monitor of the announcements that only the root can sign."""

    store: Store  # database of the announcements
    clock: Clock  # wall time
    online: bytes  # raw public key of the aggregator
    _looked_at: int = field(default=0, init=False)

    def warn(self) -> None:
        """Log the signatures that end soon, once a day."""
        now = self.clock.wall()
        if abs(now - self._looked_at) < DAY:
            return
        self._looked_at = now
        for one in root_signatures(self.store.announcements.all(), self.online):
            if one.is_near(now):
                about = {"topic": one.topic, "days": (one.until - now) // DAY}
                hint = "sign it again: gridfed-aggregator announce"
                logger.warning("root signatures expiring %s", fields(**about, hint=hint))


class RunSetupError(Failure):
    """Signed announcements that are missing or do not match the configuration."""

    exit_code = USAGE


@dataclass(frozen=True, slots=True)
class Delegate:
    """A key to which the root has delegated bundles."""

    key: Signer

    @property
    def name(self) -> str:
        return kid_of(self.key.public).hex()


def roles_of(configured: AggregatorConfig, root: RootSigners) -> Roles:
    """Return the roles of the list of keys that the root signs under a configuration."""
    model = (model_signer(configured).public,) if configured.keys.model else ()
    extensions = configured.index.configured(configured.tables)
    named = (read(configured) for one in extensions if (read := one.load("authorities")))
    return Roles(
        root=root.root if root.former is not None else None,
        bundle=bundle_keys(configured),
        model=model,
        ca=tuple(authority for found in named for authority in found),
    )


def signer(configured: AggregatorConfig) -> SigningKey:
    """Read the online key; raise RunSetupError with the remedy if it is missing or is no key."""
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
    """Refuse to start if devices would refuse the key that signs models."""
    model = model_signer(configured).public if configured.keys.model else online.public
    if model not in (announced.model or announced.sign):
        raise RunSetupError(
            f"the key of models (key id {kid_of(model).hex()}) is not announced",
            hint=f"sign it with the root key: gridfed-aggregator announce {configured.file}",
        )
