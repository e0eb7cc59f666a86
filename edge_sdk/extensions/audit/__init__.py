"""Compare a device's sent messages with the aggregator's records."""
