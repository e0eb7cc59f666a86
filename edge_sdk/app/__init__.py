"""Shared by all three programs: subcommands, settings, permissions and clocks."""
