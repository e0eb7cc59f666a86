"""Operator's console: pages over the database, served by a process of its own (extra ``console``)."""
