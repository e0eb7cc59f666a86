"""Keep the root that a device follows after the pinned one has named a successor.

The pinned root is in the configuration, which the device never writes. A successor is in a file of
the state folder, with the fleet and the pinned root that led to it: where the operator pins another
root, or the device moves to another fleet, the file has no effect.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edge_sdk.app.cli import fields
from edge_sdk.wire.keys import KeyFileError, write_atomically
from edge_sdk.wire.root_keys import RootKeys, parse_root

logger = logging.getLogger(__name__)

FILE: Final = "root-followed.json"


@dataclass(frozen=True, slots=True)
class FollowedRoot:
    """File with the root that a device follows.

    Attributes:
        path: The file; it need not exist.
        fleet: Fleet of the device.
        pinned: Root of the configuration.
    """

    path: Path
    fleet: str
    pinned: RootKeys

    @classmethod
    def of(cls, state: Path, fleet: str, pinned: RootKeys) -> FollowedRoot:
        """Return the file of a state folder."""
        return cls(state / FILE, fleet, pinned)

    def load(self) -> tuple[RootKeys, tuple[bytes, ...]]:
        """Return the root in force, and the keys to which it has delegated bundles."""
        try:
            found: Any = json.loads(self.path.read_text("utf-8"))
            if (found["fleet"], found["pinned"]) != (self.fleet, self.pinned.text):
                return self.pinned, ()
            bundle = tuple(bytes.fromhex(key) for key in found["bundle"])
            return parse_root(found["root"].strip(), self.path.name), bundle
        except FileNotFoundError:
            return self.pinned, ()
        except (OSError, ValueError, KeyError, TypeError, AttributeError, KeyFileError) as error:
            logger.warning("stored value rejected %s", fields(what=self.path.name, why=error))
            return self.pinned, ()

    def save(self, root: RootKeys, bundle: tuple[bytes, ...]) -> None:
        """Write the root in force and the keys of bundles, atomically; nothing if they are there already.

        Raises:
            OSError: The disk is full, or the folder cannot be written.
        """
        if (root, bundle) == self.load():
            return
        content = {
            "fleet": self.fleet,
            "pinned": self.pinned.text,
            "root": root.text,
            "bundle": [key.hex() for key in bundle],
        }
        write_atomically(self.path, json.dumps(content, indent=1).encode(), 0o600)
