"""Server halves of the papers' methods."""
