"""Write the configuration of a new device, check it, and log what the device lacks and does."""
