"""Audits: recompute every round from the journal, and compare deliveries with device traces."""
