"""Learning with neighbours instead of a server: membership, exchange and mixing."""
