"""A small private certificate authority: certificates of devices, brokers and the aggregator."""
