"""Exchange of models between neighbours, without an aggregator."""
