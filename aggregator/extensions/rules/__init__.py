"""Robust rules that few fleets use: on a centre of all rows, and on directions."""
