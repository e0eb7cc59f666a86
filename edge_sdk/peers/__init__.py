"""Learning with peers instead of a server: membership, exchange and mixing."""
