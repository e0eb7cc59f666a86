"""Show the privacy budget and the resource limits of a device."""
