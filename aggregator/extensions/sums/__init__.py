"""Collect masked numbers of devices, have a witness open sets of them, and keep the sums."""
