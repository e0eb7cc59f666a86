"""Forecasts beside the marks of the accuracy anchors: marks reached by each arm, and their cost."""
