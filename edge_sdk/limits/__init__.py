"""Limit a device's use of memory, flash, link bytes and wake time."""
