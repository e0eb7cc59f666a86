"""Local training: the transaction from a task to a saved update, and the state behind it."""
