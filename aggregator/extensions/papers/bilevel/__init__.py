"""Bilevel optimisation on a graph: BiG-FL."""
