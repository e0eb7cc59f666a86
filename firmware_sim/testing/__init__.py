"""Test a client without a broker: a link in memory, and an aggregator that follows a script."""
