"""The floor of all three programs: subcommands, settings and clocks."""
