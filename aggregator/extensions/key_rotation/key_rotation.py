"""Replace the root or the aggregator's key in steps, each of which may be repeated after a kill.

What is next is decided by files alone. The announcement of the root is saved before the files that
depend on it, and a key is flushed to the disk before anything is signed with it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aggregator.config import AggregatorConfig
from aggregator.config.root_files import (
    ARCHIVE,
    FORMER,
    NEXT,
    archived_keys,
    former_root,
    next_root,
)
from aggregator.operations.signing_keys import (
    RootKeyError,
    RootSigners,
    checked,
    is_token_uri,
    open_signer,
    private_keys,
)
from edge_sdk.protocol.keys import (
    Signer,
    SigningKey,
    load_signing_key,
    save_public,
    save_signing_key,
    write_atomically,
)
from edge_sdk.protocol.root_keys import RootKeys, read_root

NEXT_KEY = "root-next.key"  # private key of the next root, where none is named


@dataclass(frozen=True, slots=True)
class RootRotation:
    """A change from one root to the next."""

    config: AggregatorConfig
    former: RootKeys
    root: RootKeys
    signers: RootSigners  # private keys of both

    @classmethod
    def begin(
        cls,
        config: AggregatorConfig,
        files: Sequence[str],
        following: Sequence[str],
        threshold: int,
    ) -> RootRotation:
        """Begin a rotation, or continue one that was interrupted; the next root is saved.

        Args:
            files: Private keys of the present root; empty for those of the state folder.
            following: Private keys of the next root, files or PKCS#11 URIs; missing files are made.
                Empty for one key in the state folder.
            threshold: Number of them that have to sign from now on.

        Raises:
            RootKeyError: Keys are missing, or another rotation is not finished.
        """
        state, present = config.state, read_root(config.root_public)
        keys = [_opened(one) for one in following or [str(state / NEXT_KEY)]]
        try:
            root = RootKeys(tuple(key.public for key in keys), threshold)
        except ValueError as error:
            raise RootKeyError(f"rotate root: {error}") from error
        begun, former = next_root(state), former_root(state)
        if begun is not None and begun != root:
            raise RootKeyError(
                f"{state / NEXT}: a rotation to {begun.name} has begun, not to {root.name}",
                hint="complete it with the same --next and --threshold",
            )
        if begun is None and former is not None:
            raise RootKeyError(
                f"{state / FORMER}: devices are still changing over from {former.name}",
                hint="once they have: gridfed-aggregator rotate root --finish",
            )
        if begun is None and root == present:
            raise RootKeyError(f"rotate root: {root.name} is the root already")
        before = former if former is not None else present
        signers = checked([*private_keys(state, files), *keys], root, before)
        if begun is None:
            write_atomically(state / NEXT, root.text.encode(), 0o644)
        return cls(config, before, root, signers)

    def complete(self) -> None:
        """Put the next root in place, after it was announced."""
        state = self.config.state
        write_atomically(state / FORMER, self.former.text.encode(), 0o644)
        write_atomically(self.config.root_public, self.root.text.encode(), 0o644)
        _remove(state / NEXT)


def last_signers(config: AggregatorConfig, files: Sequence[str]) -> RootSigners:
    """Return the root's keys that finish a rotation; raise RootKeyError if none waits, or keys are missing."""
    state = config.state
    if next_root(state) is not None:
        raise RootKeyError("rotate root: the rotation is not announced yet; complete it first")
    if former_root(state) is None:
        raise RootKeyError("rotate root --finish: no rotation waits to be finished")
    return checked(private_keys(state, files), read_root(config.root_public), None)


def forget_former_root(config: AggregatorConfig) -> None:
    """Archive the former root, once only the root in force signs."""
    state = config.state
    lines = dict.fromkeys(key.hex() for key in archived_keys(state))
    write_atomically(state / ARCHIVE, ("\n".join(lines) + "\n").encode(), 0o644)
    _remove(state / FORMER)


def next_online_key(path: Path) -> SigningKey:
    """Return the next key of the aggregator, beside the present one; it is made if it is missing."""
    beside = path_of_next(path)
    if not beside.exists():
        save_signing_key(beside, SigningKey.generate())
    return load_signing_key(beside)


def path_of_next(path: Path) -> Path:
    """Return the file of the next key of the aggregator.

    >>> path_of_next(Path("state/aggregator.key")).name
    'aggregator.key.next'
    """
    return path.with_name(f"{path.name}.next")


def put_online_key(path: Path) -> None:
    """Put the next key of the aggregator in place of the present one, which is gone then."""
    key = next_online_key(path)
    path_of_next(path).replace(path)
    _flush(path.parent)
    save_public(path.with_suffix(".pub"), key.public)


def _opened(where: str) -> Signer:
    if not is_token_uri(where) and not Path(where).exists():
        save_signing_key(where, SigningKey.generate())
    return open_signer(where)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    _flush(path.parent)


def _flush(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
