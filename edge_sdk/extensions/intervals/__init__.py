"""Move the ends of prediction intervals until the intended share of readings is missed."""
