"""Identity keys of devices on the curve P-256."""
