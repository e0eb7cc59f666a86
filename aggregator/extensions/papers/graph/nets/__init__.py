"""Graph models in torch; only these and the exporters of the server need it."""
