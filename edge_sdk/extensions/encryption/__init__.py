"""Encrypt message bodies to the aggregator and to the device by HPKE (RFC 9180)."""
