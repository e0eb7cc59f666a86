"""Encryption of messages to the aggregator and to single devices."""
