"""Access rules and configuration of a Mosquitto broker."""
