"""Replace the key of a device, take it to another fleet, or erase it; follow an operator's commands."""
