"""Load the private keys of the root that are present, and check that they are enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from aggregator.config.root_files import NEXT, former_root, next_root
from aggregator.operations.key_store import is_token_uri, open_signer
from edge_sdk.app.cli import USAGE, Failure
from edge_sdk.app.permissions import require_private
from edge_sdk.wire.keys import Signer, kid_of
from edge_sdk.wire.root_keys import RootKeys, read_root


class RootKeyError(Failure):
    """Too few private keys of the root are present, or they are of another root."""

    exit_code: ClassVar[int] = USAGE


@dataclass(frozen=True, slots=True)
class RootSigners:
    """Private keys that sign for the root.

    The first one is also a ``Signer`` of its own, for a bundle's archive, which has one signature.

    Attributes:
        keys: Private keys that are present, those of the root in force first.
        root: The root in force.
        former: The root before, while devices are changing over; it signs too.
    """

    keys: tuple[Signer, ...]
    root: RootKeys
    former: RootKeys | None = None

    @classmethod
    def of(cls, key: Signer) -> RootSigners:
        """Return a root of one key.

        >>> from edge_sdk.wire.keys import from_seed
        >>> RootSigners.of(from_seed(bytes(range(32)))).name
        '56475aa75463474c'
        """
        return cls((key,), RootKeys((key.public,)))

    @property
    def public(self) -> bytes:
        """Return the public key of the first."""
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
        """Return the signature of the first."""
        return self.keys[0].sign(data)


def root_signers(folder: Path, public: Path, files: Sequence[str]) -> RootSigners:
    """Load the keys of the root, and check that they are enough.

    Args:
        folder: State folder of the aggregator.
        public: File ``root.pub``.
        files: Private key files, or PKCS#11 URIs; empty for ``root*.key`` in the state folder.

    Raises:
        RootKeyError: They are not enough of the root, or a rotation has to be finished first.
        KeyFileError: A file is no private key.
    """
    if next_root(folder) is not None:
        raise RootKeyError(
            f"{folder / NEXT}: a rotation of the root has begun and is not announced",
            hint="complete it: give `gridfed-aggregator rotate root` again",
        )
    root, former = read_root(public), former_root(folder)
    return checked(private_keys(folder, files), root, former)


def private_keys(folder: Path, files: Sequence[str]) -> list[Signer]:
    """Load private keys from files or tokens; from the state folder if none is named.

    Raises:
        RootKeyError: A file is missing.
        KeyFileError: A file is no private key.
    """
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
    """Return the keys that belong to the root in force or to the one before, if they are enough.

    Raises:
        RootKeyError: They are not enough.
    """
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
