"""Checks of the interface that rules and methods of other packages implement."""
