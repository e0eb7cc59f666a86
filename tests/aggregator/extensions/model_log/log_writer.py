"""Announce models until killed: ``python -m tests.aggregator.extensions.model_log.log_writer PLACE``.

Each line is the size and root of a checkpoint that was committed, and could have been published.
"""

import sys
from pathlib import Path

from aggregator.extensions.model_log.log_export import export_lines
from aggregator.extensions.model_log.model_log import logged
from aggregator.rounds.announcements import Ends
from aggregator.store.dialect import DatabaseUrl
from aggregator.store.opener import open_store
from aggregator.store.types import Version
from edge_sdk.extensions.model_log.signed_note import read_note
from edge_sdk.protocol import keys
from edge_sdk.protocol.codec import encode
from edge_sdk.protocol.messages import ModelMessage
from tests.aggregator.store.rig import begin

ENDS = Ends("north", keys.from_seed(b"a" * 32))
TOPIC = "gf/1/north/_all/model"


def manifest(number, serial, salt=b""):
    """Return the manifest of a round; ``salt`` makes it differ from one of another process."""
    return ModelMessage(
        serial=serial, run=1, round=number, version=number, phase="train", part="shared",
        spec=b"s" * 16, enc="f4", digest=(salt + bytes(32))[:32], size=10, chunk=10, until=0, spread=0,
        inline=0, share=1.0,
    )  # fmt: skip


def announce(store, salt=b""):
    """Close a round and announce its model in one transaction; return the checkpoint."""
    number = len(store.runs.versions(1)) + 1
    message, append = logged(
        manifest(number, store.announcements.next_serial(), salt),
        bytes(32),
        store,
        ENDS,
        time=number,
    )
    closed = Version(1, number, number, True, bytes(32), {}, number)
    store.commit(1, {}, number, closed=closed, published={TOPIC: encode(message)}, also=[append])
    return read_note(message.note).checkpoint


def history(path, salts):
    """Return the exports after each of these announcements; a salt makes the models other ones."""
    with open_store(path) as store:
        begin(store)
        found = []
        for salt in salts:
            announce(store, salt)
            found.append(list(export_lines(store, "north", 1, ENDS.signer)))
        return found


def main():
    place = sys.argv[1]
    location = DatabaseUrl(place) if place.startswith("postgres") else Path(place)
    with open_store(location) as store:
        if not store.runs.numbers():
            begin(store)
        while True:
            found = announce(store, salt=sys.argv[2].encode())
            sys.stdout.write(f"{found.size} {found.root.hex()}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
