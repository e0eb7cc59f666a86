"""Persistent state of the aggregator, in one database with one ordered journal.

``opener.open_store`` opens a ``store.Store``: an object for each table, which reads and writes its own
rows, and the transactions of several. ``sqlite`` is the engine of files; extensions bring other engines
and tables of their own.
"""
