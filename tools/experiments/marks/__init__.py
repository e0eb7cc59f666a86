"""Forecasts beside the marks of the accuracy anchors: which arm reaches which, on what, at what cost."""
