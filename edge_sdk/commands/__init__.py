"""The subcommands of ``gridfed-edge``."""
