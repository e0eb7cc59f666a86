"""Liveness, readiness, status and metrics over HTTP."""
