"""Offline analyses, which the daemon does not import."""
