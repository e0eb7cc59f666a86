"""Reports about simulated fleets: progress, errors, intervals, credit and pages."""
