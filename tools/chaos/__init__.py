"""A fleet in a storm: everything fails, over and over, and the history check has the last word."""
