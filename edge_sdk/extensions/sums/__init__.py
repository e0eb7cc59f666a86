"""Send readings and expected values to sums that only an aggregator and a witness together can open."""
