"""Replacement of the root or of the aggregator's key while the fleet goes on."""
