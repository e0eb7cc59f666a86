"""Averaging rules of the papers: AFL, FedAtt, FedGRU, and averages with noise."""
