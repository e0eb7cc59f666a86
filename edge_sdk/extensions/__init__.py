"""Options of a device: each imports the core and no other, and is imported when it is configured."""
