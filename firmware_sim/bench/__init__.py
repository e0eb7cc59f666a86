"""Comparisons of many runs: cells of a grid, a record of each, tables, and a report."""
