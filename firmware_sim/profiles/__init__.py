"""Profiles of sites from a seed: weather, homes, businesses, cars, cells. Numpy, no files.

The shapes are assumptions, stated with each, not fitted models. Every profile can compute any day
without the days before, so that a simulated device can be restarted anywhere.
"""
