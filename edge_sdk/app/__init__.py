"""Provide what all three programs share: subcommands, settings, permissions and clocks."""
