"""Torch models and models in closed form, and their export into bundles. Only model authors need it."""
