"""The subcommands of ``gridfed-aggregator``."""
