"""Record who did what, when and why, in a signed log that only grows; export and verify it."""
