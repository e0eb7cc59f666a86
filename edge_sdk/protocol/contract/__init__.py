"""Contracts shared by both ends: method contracts, parameter layout, manifest and archive."""
