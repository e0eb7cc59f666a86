"""What lies here is run as programs (`make journeys`), not collected as tests."""

collect_ignore_glob = ["*.py"]
