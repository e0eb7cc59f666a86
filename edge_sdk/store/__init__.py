"""Store a device's state durably: one SQLite file, one transaction per save."""
