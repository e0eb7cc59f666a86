"""Resource limits of a device: memory, flash, link bytes and wake time."""
