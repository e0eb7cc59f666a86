"""Arithmetic that device and aggregator must compute alike, bit for bit."""
