"""Enrol for, renew and replace the device's certificate by EST (RFC 7030)."""
