"""Privacy mechanisms between readings and outbox, and the account of their cost."""
