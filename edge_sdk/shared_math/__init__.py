"""Arithmetic that device and aggregator must compute identically, bit for bit."""
