"""A simulated day of one device, measured from outside of it: ``python -m tools.day``."""
