"""Replace the identity key of a device in use."""
