"""Local training: what runs when a task arrives, and what is saved with its answer."""
