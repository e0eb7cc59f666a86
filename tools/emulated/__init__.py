"""The device's code on an emulated small ARM core: ``python -m tools.emulated``."""
