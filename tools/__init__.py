"""Tools that run from a checkout: fetch, reproduce, measure, generate. Not installed."""
