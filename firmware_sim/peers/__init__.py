"""Simulated devices that learn with their neighbours, without a server."""
