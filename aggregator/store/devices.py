"""Store the enrolled devices, their software version and last message, and the runs that they have declined."""

from __future__ import annotations

import json
from collections.abc import Mapping

from aggregator.store.dialect import has_table, upsert
from aggregator.store.transactions import Table
from aggregator.store.types import Contact, DeclinedRun, EnrolledDevice


class Devices(Table):
    """Enrolled devices."""

    def all(self) -> list[EnrolledDevice]:
        return self._read(None)

    def get(self, device: str) -> EnrolledDevice | None:
        """Return an enrolled device; None if no device has the id."""
        return next(iter(self._read(device)), None)

    def _read(self, only: str | None) -> list[EnrolledDevice]:
        labels: dict[str, list[tuple[str, str]]] = {}
        where, values = ("", ()) if only is None else ("WHERE id = ?", (only,))
        if has_table(self._db, "run_names"):
            of = where.replace("id", "device")
            for device, name, value in self._db.execute(
                f"SELECT device, name, value FROM labels {of} ORDER BY device, name",  # noqa: S608 - no value in it
                values,
            ):
                labels.setdefault(device, []).append((name, value))
        return [
            EnrolledDevice(
                name,
                tuple(bytes.fromhex(key) for key in json.loads(sign)),
                generation,
                state,
                why,
                tuple(labels.get(name, ())),
            )
            for name, sign, generation, state, why in self._db.execute(
                f"SELECT id, sign, generation, state, why FROM clients {where} ORDER BY id",  # noqa: S608 - no value in it
                values,
            )
        ]

    def save(self, client: EnrolledDevice) -> None:
        """Insert or replace a device."""
        with self._writing() as db:
            sign = json.dumps([key.hex() for key in client.sign])
            db.execute(
                upsert("clients", "id", "sign, generation, state, why"),
                (client.id, sign, client.generation, client.state, client.why),
            )
            db.execute("DELETE FROM labels WHERE device = ?", (client.id,))
            db.executemany(
                "INSERT INTO labels VALUES (?, ?, ?)",
                [(client.id, *pair) for pair in client.labels],
            )


class Contacts(Table):
    """Software version and last message of each device."""

    def all(self) -> dict[str, Contact]:
        """Return version and last message of the devices, by id."""
        if not has_table(self._db, "contacts"):
            return {}
        return {
            device: Contact(sdk, seen)
            for device, sdk, seen in self._db.execute("SELECT device, sdk, seen FROM contacts")
        }

    def save(self, found: Mapping[str, Contact]) -> None:
        """Insert or replace version and last message of some devices."""
        with self._writing() as db:
            rows = [(device, one.sdk, one.seen) for device, one in found.items()]
            db.executemany(upsert("contacts", "device", "sdk, seen"), rows)


class DeclinedRuns(Table):
    """Runs that devices cannot take part in."""

    def all(self) -> list[DeclinedRun]:
        """Return the runs that devices have declined, by device and name."""
        if not has_table(self._db, "contacts"):
            return []
        found = "SELECT device, name, reason, ref FROM declined ORDER BY device, name"
        rows = self._db.execute(found)
        return [DeclinedRun(device, name, why, bytes(ref)) for device, name, why, ref in rows]

    def add(self, run: DeclinedRun) -> None:
        """Record that a device cannot take part in a run.

        >>> from aggregator.store.sqlite import in_memory
        >>> declined = in_memory().declined
        >>> declined.add(DeclinedRun("meter-1", "cells", "UNKNOWN_KIND", bytes(16)))
        >>> [(one.device, one.name, one.reason) for one in declined.all()]
        [('meter-1', 'cells', 'UNKNOWN_KIND')]
        >>> declined.forget("meter-1")
        >>> declined.all()
        []
        """
        with self._writing() as db:
            row = (run.device, run.name, run.reason, run.ref)
            db.execute(upsert("declined", "device, name", "reason, ref"), row)

    def forget(self, device: str) -> None:
        with self._writing() as db:
            db.execute("DELETE FROM declined WHERE device = ?", (device,))
