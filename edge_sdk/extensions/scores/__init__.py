"""Answer a daily question about the forecast's error with local noise."""
