"""Several runs of one device at the same time."""
