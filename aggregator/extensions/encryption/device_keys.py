"""Store the X25519 keys that devices announce in their hellos."""

from __future__ import annotations

from dataclasses import dataclass

from aggregator.store.dialect import has_table, upsert
from aggregator.store.transactions import Table


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
