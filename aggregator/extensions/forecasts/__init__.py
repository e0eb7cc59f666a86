"""Keep the newest forecast of each device."""
