"""The only door through which anything measured leaves, and the account of what went through."""
