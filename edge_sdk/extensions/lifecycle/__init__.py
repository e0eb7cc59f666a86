"""Take a device to another fleet, or erase it; follow an operator's commands."""
