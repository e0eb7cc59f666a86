"""Implement the subcommands of ``gridfed-edge``."""
