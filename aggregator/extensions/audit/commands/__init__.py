"""Subcommands of the aggregator that the extension gives."""
