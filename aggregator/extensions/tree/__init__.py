"""The session of an aggregator with its parent's aggregator, in which it is one device."""
