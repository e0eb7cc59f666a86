"""Clustered methods: FeSEM."""
