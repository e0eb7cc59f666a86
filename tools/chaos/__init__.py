"""Chaos test of a fleet: repeated faults of every kind, and a final check of the history."""
