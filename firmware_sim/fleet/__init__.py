"""Fleets of real clients: in one process, or in processes of their own."""
