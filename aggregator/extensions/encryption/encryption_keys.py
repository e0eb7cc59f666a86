"""Keep the private keys to which devices encrypt, as files in one folder.

The present key has the highest number. The two before it stay, so that the messages that devices
encrypted before a change of keys can still be read, also if a change was interrupted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from aggregator.config import AggregatorConfig
from aggregator.extensions.encryption.settings import folder_of, section_of
from aggregator.operations.signing_keys import RunSetupError
from edge_sdk.app.permissions import make_private_folder, require_private
from edge_sdk.errors import USAGE, Failure
from edge_sdk.extensions.encryption.hpke import PUBLIC_SIZE, DecryptionKey
from edge_sdk.protocol.keys import kid_of, write_atomically

_NAME = re.compile(r"(\d{1,9})\.key")
_KEPT = 3  # number of keys kept by ``EncryptionKeys.present`` when it makes another


class EncryptionKeyError(Failure):
    """An error: a key file that does not hold a key."""

    exit_code = USAGE


class EncryptionKeys:
    """The keys of a folder, read when a key id is unknown.

    Args:
        folder: Folder of the key files; made with the first key.
    """

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
    """Return the public key to which devices encrypt.

    Args:
        renew: Make another one.
    """
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
