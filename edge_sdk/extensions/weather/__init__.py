"""Weather that the operator announces for the regions of a fleet."""
