"""Publish weather to the regions of a fleet."""
