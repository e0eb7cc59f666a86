"""What happens at a site, from a seed: weather, homes, businesses, cars, cells. Numpy, no files.

The shapes are assumptions, stated with each, not fitted models. Every profile answers for any day
without having lived the days before, so that a simulated device can be restarted anywhere.
"""
