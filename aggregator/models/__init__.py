"""Torch definitions of models and their export into bundles. Only authoring needs it, and torch."""
