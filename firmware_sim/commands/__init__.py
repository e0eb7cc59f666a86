"""The subcommands of ``gridfed-sim``."""
