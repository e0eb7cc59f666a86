"""Write the configuration of a new device, and measure the memory that it needs."""
