"""Analyses that no daemon imports."""
