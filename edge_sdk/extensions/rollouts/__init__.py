"""Try a new bundle beside the one in use, and report one word a day."""
