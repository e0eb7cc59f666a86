"""Graph models in torch; of the server's modules only these and the exporters need it."""
