"""Asynchronous methods: FedAsync and FedBuff."""
