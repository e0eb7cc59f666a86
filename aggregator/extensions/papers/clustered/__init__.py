"""Clustered methods: FeSEM and FedDA."""
