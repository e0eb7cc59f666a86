"""Score and draw forecasts of a device's own stored record."""
