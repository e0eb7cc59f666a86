"""Brokers: find one, start one, and write or check Mosquitto's configuration."""
