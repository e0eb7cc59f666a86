"""Time series, windows, forecasts and prediction intervals of one device."""
