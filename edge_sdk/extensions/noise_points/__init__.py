"""Noise at other points than the update: at readings, at gradients, or as randomised signs."""
