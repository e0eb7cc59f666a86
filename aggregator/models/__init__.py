"""Torch models and their export into bundles. Only model authors need it, and torch."""
