"""Options of the server: each imports the core and no other, and is imported when it is configured."""
