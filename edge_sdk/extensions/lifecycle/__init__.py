"""Replace the key of a device, take it to another fleet, or erase it."""
