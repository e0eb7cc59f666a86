"""Protocols of real devices, as servers. No code is shared with the SDK's readers."""
