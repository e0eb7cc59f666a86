"""Give the forecast's error to sums of the fleet, as one cell of a histogram."""
