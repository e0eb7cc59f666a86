"""Decrypt bodies that devices encrypted to the aggregator, and encrypt those that it sends to one device.

The key of a device is bound to the signing key of the hello that announced it: under another signing key
of the device it is not used until a hello of that key announces one.

The private keys to which devices encrypt are files in one folder. The present key has the highest number.
The two before it stay, so that the messages that devices encrypted before a change of keys can still be
read, also if a change was interrupted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from aggregator.config import AggregatorConfig
from aggregator.extensions.encryption.settings import folder_of, section_of
from aggregator.ingress.message_bodies import BodyCodec
from aggregator.operations.signing_keys import RunSetupError
from aggregator.store.dialect import has_table, upsert
from aggregator.store.store import Store
from aggregator.store.transactions import Table
from edge_sdk.app.permissions import make_private_folder, require_private
from edge_sdk.errors import USAGE, Failure, Reason, Refused
from edge_sdk.extensions.encryption.encrypted_body import (
    BodyContext,
    decrypted_body,
    encrypted_body,
)
from edge_sdk.extensions.encryption.hpke import PUBLIC_SIZE, DecryptionKey
from edge_sdk.protocol.codec import encode
from edge_sdk.protocol.envelope import AGGREGATOR, Sealed
from edge_sdk.protocol.keys import KID_SIZE, kid_of, write_atomically
from edge_sdk.protocol.messages import HelloMessage, ProtocolMessage, RefusalMessage

_NAME = re.compile(r"(\d{1,9})\.key")
_KEPT = 3  # number of keys kept by ``EncryptionKeys.present`` when it makes another


class EncryptionKeyError(Failure):
    """An error: a key file that does not hold a key."""

    exit_code = USAGE


class EncryptionKeys:
    """The keys of a folder, which is made with the first one; read when a key id is unknown."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[bytes, DecryptionKey] = {}
        self._read_at: int | None = None

    def present(self, *, renew: bool = False) -> DecryptionKey:
        """Return the newest key, and make one if there is none.

        Args:
            renew: Make another key, and delete all but it and the two before.
        """
        files = self._files()
        if files and not renew:
            return _read(files[-1])
        key = DecryptionKey.generate()
        number = int(files[-1].stem) + 1 if files else 1
        make_private_folder(self._folder)
        write_atomically(self._folder / f"{number}.key", key.raw.hex().encode() + b"\n", 0o600)
        for old in files[: 1 - _KEPT]:
            old.unlink()
        return key

    def key_of(self, kid: bytes) -> DecryptionKey | None:
        """Return the key with an id; the folder is read again if it changed since the last time."""
        if kid not in self._known and self._changed():
            self._known = {key.kid: key for key in map(_read, self._files())}
        return self._known.get(kid)

    def _changed(self) -> bool:
        try:
            changed_at = self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            return False
        is_changed, self._read_at = changed_at != self._read_at, changed_at
        return is_changed

    def _files(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        found = (path for path in self._folder.iterdir() if _NAME.fullmatch(path.name))
        return sorted(found, key=lambda path: int(path.stem))


def announced_key(config: AggregatorConfig, *, renew: bool) -> bytes:
    """Return the public key to which devices encrypt."""
    return EncryptionKeys(folder_of(config)).present(renew=renew).public


def require_announced(config: AggregatorConfig, announced: Sequence[bytes]) -> None:
    """Refuse to start if devices encrypt to a missing key.

    Args:
        announced: Public keys of the list of keys.

    Raises:
        RunSetupError: A private key is missing, or none is announced.
    """
    keys = EncryptionKeys(folder_of(config))
    missing = [one for one in announced if keys.key_of(kid_of(one)) is None]
    if missing or (section_of(config).kinds and not announced):
        named = ", ".join(kid_of(one).hex() for one in missing) or "none is announced"
        raise RunSetupError(
            f"{folder_of(config)} lacks the key to which devices encrypt ({named})",
            hint="put it back from a backup, or announce one: "
            f"gridfed-aggregator announce {config.file}",
        )


def _read(path: Path) -> DecryptionKey:
    require_private(path)
    try:
        raw = bytes.fromhex(path.read_text(encoding="ascii"))
        if len(raw) != PUBLIC_SIZE:
            raise ValueError  # noqa: TRY301 - one message for both
    except (OSError, ValueError) as error:
        raise EncryptionKeyError(
            f"{path}: expected an X25519 private key of 64 hex digits",
            hint="put it back from a backup, or move the file away and announce another key: "
            "gridfed-aggregator announce CONFIG --new-encryption-key",
        ) from error
    return DecryptionKey(raw)


# kinds that may be sent clear to a device whose key is unknown here: it may have lost its key
EXEMPT = frozenset(("floor", "refusal"))


class EncryptedBodies(BodyCodec):
    """Codec of encrypted bodies.

    Args:
        fleet: Id of the fleet, part of every context.
        key_of: Returns the private key with an id, or None.
        store: Database with the devices' keys, which are read once.
        is_signed_by: Returns whether a device signs with the key of this id.
        kinds: Kinds of which no clear body is accepted.
        are_required: True to refuse hellos without a key, and to send no clear content.
    """

    def __init__(
        self,
        fleet: str,
        key_of: Callable[[bytes], DecryptionKey | None],
        store: Store,
        is_signed_by: Callable[[str, bytes], bool],
        *,
        kinds: Collection[str] = (),
        are_required: bool = False,
    ) -> None:
        self._fleet, self._private, self._is_signed_by = fleet, key_of, is_signed_by
        self._table = store.table(AnnouncedKeys)
        self._announced = self._table.all()
        self._kinds, self._are_required = kinds, are_required

    def decrypt(self, kind: str, sender: str, body: bytes) -> bytes:
        """Return the clear body of a verified message; raise Refused as ``decrypted_body``."""
        context = BodyContext(self._fleet, kind, sender, AGGREGATOR)
        return decrypted_body(body, self._private, context)

    def refuse_clear(self, kind: str, sender: str) -> None:
        """Raise Refused, PLAIN_REFUSED, for a clear body of a kind that must be encrypted."""
        if kind in self._kinds:
            raise Refused(Reason.PLAIN_REFUSED, f"{sender}: a clear {kind}")

    def check_hello(self, device: str, hello: HelloMessage) -> None:
        """Refuse a hello without a required key, PLAIN_REFUSED, or with one of small order, CANNOT_OPEN."""
        if not hello.key and self._are_required:
            raise Refused(Reason.PLAIN_REFUSED, f"{device}: a hello without a key to encrypt to")
        if hello.key:
            encrypted_body(b"", hello.key, BodyContext("", "", AGGREGATOR, device))

    def record(self, sealed: Sealed, hello: HelloMessage) -> bool:
        """Record the key of an accepted hello; an empty one deletes the device's key.

        Returns:
            True if the device had another key before, or none.
        """
        device, signer = sealed.sender, sealed.proof[:KID_SIZE]
        found = AnnouncedKey(signer, hello.key) if hello.key else None
        before = self._announced.get(device)
        if found == before:
            return False
        self._table.save(device, found)
        if found is None:
            del self._announced[device]
        else:
            self._announced[device] = found
        return True

    def key_of(self, device: str) -> bytes:
        """Return the raw X25519 key to which messages to a device are encrypted; empty for none."""
        found = self._announced.get(device)
        return found.key if found and self._is_signed_by(device, found.signer) else b""

    def encoded(self, device: str, message: ProtocolMessage, key: bytes) -> tuple[str, bytes]:
        """Encrypt a message for one device if its key is known.

        Where keys are required, a device without a key is asked for a hello instead.
        """
        public = key or self.key_of(device)
        if public:
            context = BodyContext(self._fleet, message.kind, AGGREGATOR, device)
            return message.kind, encrypted_body(encode(message), public, context)
        if self._are_required and message.kind not in EXEMPT:
            message = RefusalMessage(Reason.SAY_HELLO, 0)
        return message.kind, encode(message)


def bodies(
    config: AggregatorConfig, store: Store, is_signed_by: Callable[[str, bytes], bool]
) -> EncryptedBodies:
    """Return the codec of a configuration."""
    section, keys = section_of(config), EncryptionKeys(folder_of(config))
    return EncryptedBodies(
        config.fleet,
        keys.key_of,
        store,
        is_signed_by,
        kinds=frozenset(section.kinds),
        are_required=section.require_device_keys,
    )


@dataclass(frozen=True, slots=True)
class AnnouncedKey:
    """Encryption key that a device announced."""

    signer: bytes  # key id of the signing key of the hello that announced it (8 bytes)
    key: bytes  # raw X25519 public key (32 bytes)


class AnnouncedKeys(Table):
    """Encryption key that each device has announced."""

    def all(self) -> dict[str, AnnouncedKey]:
        """Return the encryption keys that devices have announced, by id."""
        if not has_table(self._db, "device_keys"):
            return {}
        found = self._db.execute("SELECT device, signer, key FROM device_keys")
        return {device: AnnouncedKey(bytes(signer), bytes(key)) for device, signer, key in found}

    def save(self, device: str, found: AnnouncedKey | None) -> None:
        """Insert, replace or delete the encryption key of a device.

        >>> from aggregator.store.sqlite import in_memory
        >>> keys = in_memory().table(AnnouncedKeys)
        >>> keys.save("meter-1", AnnouncedKey(bytes(8), bytes(32)))
        >>> sorted(keys.all())
        ['meter-1']
        >>> keys.save("meter-1", None)
        >>> keys.all()
        {}
        """
        with self._writing() as db:
            if found is None:
                db.execute("DELETE FROM device_keys WHERE device = ?", (device,))
                return
            db.execute(
                upsert("device_keys", "device", "signer, key"), (device, found.signer, found.key)
            )
