"""From a received message to its journal entry: limits, registry, uploads, admission, replies."""
