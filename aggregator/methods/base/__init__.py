"""What the server halves share: types, the averaging engine, quorums and server optimisers."""
