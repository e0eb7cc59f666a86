"""Persistent state of the aggregator, in one database with one ordered journal.

``types.Store`` is the interface that everything else imports, and ``opener.open_store`` opens one.
``sqlite.SqliteStore`` implements it and alone begins and ends transactions; behind it are the file
(``connection``, ``schema``) and one module per table group: functions of a connection, which do not
import each other.
"""
