"""Daily histogram of the forecasts' errors from noisy answers."""
