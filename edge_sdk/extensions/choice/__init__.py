"""Choose a device's forecaster: the fleet's model, a tuned copy, models of its own, or a mean.

Modules in the order in which they build on each other:

    combination → forecast_choice → model_monitor → own_model → candidates → fine_tuning
        → last_good → saved_selection → record_errors → forecast_selection

Another extension offers a candidate by two keys of its row, ``candidate`` and ``fit``
(``saved_selection.FittedCandidate``). All forecasts are quantiles ``(n, horizon, levels)``: a horizon
of many steps has a choice for each block of them (``combination.blocks_of``).
"""
