"""Forecast the load of feeders from the sums of their devices alone."""
