"""Record that an agent runs, for containers and monitors."""
