"""Keep the private keys to which devices encrypt, as files in one folder.

The present key has the highest number. The two before it stay, so that the messages that devices
encrypted before a change of keys can still be read, also if a change was interrupted.
"""

from __future__ import annotations

import re
from pathlib import Path

from edge_sdk.app.cli import USAGE, Failure
from edge_sdk.app.permissions import make_private_folder, require_private
from edge_sdk.wire.hpke import PUBLIC_SIZE, DecryptionKey
from edge_sdk.wire.keys import write_atomically

_NAME = re.compile(r"(\d{1,9})\.key")
_KEPT = 3
"""Number of keys kept by ``EncryptionKeys.present`` when it makes another."""


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

        Raises:
            EncryptionKeyError: A file does not hold a key.
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
        """Return the key with an id; the folder is read again if it changed since the last time.

        Raises:
            EncryptionKeyError: A file does not hold a key.
        """
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
        """Return the key files, the newest last."""
        if not self._folder.is_dir():
            return []
        found = (path for path in self._folder.iterdir() if _NAME.fullmatch(path.name))
        return sorted(found, key=lambda path: int(path.stem))


def _read(path: Path) -> DecryptionKey:
    """Return the key of a file.

    Raises:
        EncryptionKeyError: It holds none, or others may read it.
    """
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
