"""Verify that every announced model stands in the run's log (RFC 6962, witnessed notes)."""
