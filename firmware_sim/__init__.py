"""Devices that behave, misbehave and fail, on nothing but the public SDK."""
