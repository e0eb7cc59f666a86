"""Carry out orders until killed: ``python -m tests.aggregator.extensions.audit_log.order_writer PLACE SEED``.

Each line is the number of a record that was committed.
"""

import random
import sys
from pathlib import Path

from aggregator.audit_log import AuditLog
from aggregator.operations.control_queue import ControlOrder
from aggregator.operations.order_executor import apply_recorded
from aggregator.store.dialect import DatabaseUrl
from aggregator.store.opener import open_store
from edge_sdk.protocol import keys

KEY = keys.from_seed(b"a" * 32)


def order(rng, known):
    """Return an order that may or may not change something."""
    name = f"m-{rng.randrange(12)}"
    public = keys.from_seed(f"{name} {rng.randrange(2)}".encode().ljust(32)).public.hex()
    if name not in known:
        return ControlOrder("enrol", name, public=public, who="ann")
    return rng.choice(
        (
            ControlOrder("enrol", name, public=public, who="ann"),
            ControlOrder("label", name, labels=f"area={rng.choice('abc')}", who="bob"),
            ControlOrder("revoke", name, why=rng.choice(("sold", "stolen")), who="eve"),
            ControlOrder("command", name, op=rng.choice(("stop", "report")), who="bob"),
        )
    )


def main():
    place, rng = sys.argv[1], random.Random(sys.argv[2])
    location = DatabaseUrl(place) if place.startswith("postgres") else Path(place)
    with open_store(location) as store:
        audit_log = AuditLog(store, "north", KEY)
        while True:
            apply_recorded(order(rng, {one.id for one in store.devices.all()}), store, audit_log)
            last = store.audit_log.last()
            sys.stdout.write(f"{last.number}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
