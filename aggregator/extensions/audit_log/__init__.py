"""Record acts with person, time and reason in a signed append-only log; export and verify it."""
