"""Shared parts of the server halves: types, averaging engine, quorums and server optimisers."""
