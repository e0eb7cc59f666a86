"""Audits: recompute every round from the journal."""
