"""Simulated devices: meters, charge points, base stations, and their faults."""
