"""Check what other packages offer by entry points."""
