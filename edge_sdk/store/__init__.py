"""The device's durable store: one SQLite file, one transaction per save."""
